# The look of every figure; the plot itself follows.
set terminal svg size 880,250 dynamic background "#ffffff" font "Helvetica,Arial,sans-serif,14" name "f2" butt noenhanced
set encoding utf8
set border 3 lc rgb '#777777'
set tics nomirror out scale 0.5 textcolor rgb '#1a1a1a'
set xlabel textcolor rgb '#1a1a1a'
set grid xtics noytics lc rgb '#dddddd' lw 1 lt 1
set style fill solid 1.0 noborder
set lmargin at screen 0.1909
set rmargin at screen 0.9750
set tmargin at screen 0.9680
set bmargin at screen 0.3920
set xrange [0:5.2]
set xtics 1 offset 0,0.2
set format x '%g'
unset key
set label 'milliseconds from the beginning of the step' at graph 0.5,screen 0.22400 center textcolor rgb '#1a1a1a'
set object 1 rect from screen 0.00909,screen 0.10000 to screen 0.02500,screen 0.14000 fc rgb '#56b4e9' fs solid noborder
set label 'forward' at screen 0.03182,screen 0.12000 left textcolor rgb '#1a1a1a'
set object 2 rect from screen 0.20545,screen 0.10000 to screen 0.22136,screen 0.14000 fc rgb '#0072b2' fs solid noborder
set label 'backward' at screen 0.22818,screen 0.12000 left textcolor rgb '#1a1a1a'
set object 3 rect from screen 0.40182,screen 0.10000 to screen 0.41773,screen 0.14000 fc rgb '#009e73' fs solid noborder
set label 'optimizer' at screen 0.42455,screen 0.12000 left textcolor rgb '#1a1a1a'
set object 4 rect from screen 0.59818,screen 0.10000 to screen 0.61409,screen 0.14000 fc rgb '#999999' fs solid noborder
set label 'copy' at screen 0.62091,screen 0.12000 left textcolor rgb '#1a1a1a'
set object 5 rect from screen 0.79455,screen 0.10000 to screen 0.81045,screen 0.14000 fc rgb '#e69f00' fs solid noborder
set label 'all gather' at screen 0.81727,screen 0.12000 left textcolor rgb '#1a1a1a'
set object 6 rect from screen 0.00909,screen 0.02000 to screen 0.02500,screen 0.06000 fc rgb '#d55e00' fs solid noborder
set label 'reduce scatter' at screen 0.03182,screen 0.04000 left textcolor rgb '#1a1a1a'
set yrange [6.5:0.5]
set ytics scale 0 ('rank 0  compute' 1, 'rank 0  all_gather' 2, 'rank 0  reduce_scatter' 3, 'rank 1  compute' 4, 'rank 1  all_gather' 5, 'rank 1  reduce_scatter' 6)
$kind0 << EOD
0.1 1
0.38 1

0.5 1
0.78 1

0.9 1
1.18 1

1.3 1
1.58 1

1.7 1
1.98 1

2.1 1
2.38 1

0.15 4
0.43 4

0.55 4
0.83 4

0.95 4
1.23 4

1.35 4
1.63 4

1.75 4
2.03 4

2.15 4
2.43 4

EOD
$kind1 << EOD
2.5 1
2.78 1

2.9 1
3.18 1

3.3 1
3.58 1

3.7 1
3.98 1

4.1 1
4.38 1

4.5 1
4.78 1

2.55 4
2.83 4

2.95 4
3.23 4

3.35 4
3.63 4

3.75 4
4.03 4

4.15 4
4.43 4

4.55 4
4.83 4

EOD
$kind2 << EOD
4.9 1
5.2 1

4.9 4
5.2 4

EOD
$kind3 << EOD
0.09 2
0.1 2

0.49 2
0.5 2

0.89 2
0.9 2

1.29 2
1.3 2

1.69 2
1.7 2

2.09 2
2.1 2

2.49 2
2.5 2

2.89 2
2.9 2

3.29 2
3.3 2

3.69 2
3.7 2

4.09 2
4.1 2

4.49 2
4.5 2

0.14 5
0.15 5

0.54 5
0.55 5

0.94 5
0.95 5

1.34 5
1.35 5

1.74 5
1.75 5

2.14 5
2.15 5

2.54 5
2.55 5

2.94 5
2.95 5

3.34 5
3.35 5

3.74 5
3.75 5

4.14 5
4.15 5

4.54 5
4.55 5

EOD
$kind4 << EOD
0 2
0.09 2

0.4 2
0.49 2

0.8 2
0.89 2

1.2 2
1.29 2

1.6 2
1.69 2

2 2
2.09 2

2.4 2
2.49 2

2.8 2
2.89 2

3.2 2
3.29 2

3.6 2
3.69 2

4 2
4.09 2

4.4 2
4.49 2

0.05 5
0.14 5

0.45 5
0.54 5

0.85 5
0.94 5

1.25 5
1.34 5

1.65 5
1.74 5

2.05 5
2.14 5

2.45 5
2.54 5

2.85 5
2.94 5

3.25 5
3.34 5

3.65 5
3.74 5

4.05 5
4.14 5

4.45 5
4.54 5

EOD
$kind5 << EOD
2.7 3
2.8 3

3.1 3
3.2 3

3.5 3
3.6 3

3.9 3
4 3

4.3 3
4.4 3

4.7 3
4.8 3

2.75 6
2.85 6

3.15 6
3.25 6

3.55 6
3.65 6

3.95 6
4.05 6

4.35 6
4.45 6

4.75 6
4.85 6

EOD
plot $kind0 with lines lw 14 lc rgb '#56b4e9', $kind1 with lines lw 14 lc rgb '#0072b2', $kind2 with lines lw 14 lc rgb '#009e73', $kind3 with lines lw 14 lc rgb '#999999', $kind4 with lines lw 14 lc rgb '#e69f00', $kind5 with lines lw 14 lc rgb '#d55e00'
