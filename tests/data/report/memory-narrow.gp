# The look of every figure; the plot itself follows.
set terminal svg size 360,386 dynamic background "#ffffff" font "Helvetica,Arial,sans-serif,12" name "f1" butt noenhanced
set encoding utf8
set border 3 lc rgb '#777777'
set tics nomirror out scale 0.5 textcolor rgb '#1a1a1a'
set xlabel textcolor rgb '#1a1a1a'
set grid xtics noytics lc rgb '#dddddd' lw 1 lt 1
set style fill solid 1.0 noborder
set lmargin at screen 0.2064
set rmargin at screen 0.9389
set tmargin at screen 0.9793
set bmargin at screen 0.3575
set yrange [6.5:0.5]
set ytics scale 0 ("root\nuniform" 1, "per_layer\nuniform" 2, "replicate\nuniform" 3, "root\nmixed" 4, "per_layer\nmixed" 5, "replicate\nmixed" 6)
set arrow from graph 0, first 3.5 to graph 1, first 3.5 nohead lc rgb '#999999' lw 1
set label 'not safe: mismatch' at graph 0.02, first 5 left front textcolor rgb '#8a1c1c'
set xrange [0:6.81906647]
set xtics 2 offset 0,0.2
set format x '%g'
unset key
set label 'MiB at the peak of one rank' at graph 0.5,screen 0.24870 center textcolor rgb '#1a1a1a'
set object 1 rect from screen 0.02222,screen 0.16839 to screen 0.06111,screen 0.19430 fc rgb '#332288' fs solid noborder
set label 'sharded parameters' at screen 0.07778,screen 0.18135 left textcolor rgb '#1a1a1a'
set object 2 rect from screen 0.50000,screen 0.16839 to screen 0.53889,screen 0.19430 fc rgb '#88ccee' fs solid noborder
set label 'unsharded parameters' at screen 0.55556,screen 0.18135 left textcolor rgb '#1a1a1a'
set object 3 rect from screen 0.02222,screen 0.11658 to screen 0.06111,screen 0.14249 fc rgb '#44aa99' fs solid noborder
set label 'gradients' at screen 0.07778,screen 0.12953 left textcolor rgb '#1a1a1a'
set object 4 rect from screen 0.50000,screen 0.11658 to screen 0.53889,screen 0.14249 fc rgb '#117733' fs solid noborder
set label 'gather buffers' at screen 0.55556,screen 0.12953 left textcolor rgb '#1a1a1a'
set object 5 rect from screen 0.02222,screen 0.06477 to screen 0.06111,screen 0.09067 fc rgb '#999933' fs solid noborder
set label 'reduce buffers' at screen 0.07778,screen 0.07772 left textcolor rgb '#1a1a1a'
set object 6 rect from screen 0.50000,screen 0.06477 to screen 0.53889,screen 0.09067 fc rgb '#ddcc77' fs solid noborder
set label 'activations' at screen 0.55556,screen 0.07772 left textcolor rgb '#1a1a1a'
set object 7 rect from screen 0.02222,screen 0.01295 to screen 0.06111,screen 0.03886 fc rgb '#cc6677' fs solid noborder
set label 'optimizer' at screen 0.07778,screen 0.02591 left textcolor rgb '#1a1a1a'
set object 8 rect from screen 0.50000,screen 0.01295 to screen 0.53889,screen 0.03886 fc rgb '#882255' fs solid noborder
set label 'temporary' at screen 0.55556,screen 0.02591 left textcolor rgb '#1a1a1a'
$category0 << EOD
0 1 0 1.14440918 0.72 1.28
0 2 0 1.14440918 1.72 2.28
0 3 0 1.8119812 2.72 3.28
0 4 0 1.14440918 3.72 4.28
0 6 0 1.8119812 5.72 6.28
EOD
$category1 << EOD
1.14440918 1 1.14440918 2.00271606 0.72 1.28
1.14440918 2 1.14440918 1.62124634 1.72 2.28
1.8119812 3 1.8119812 2.28881836 2.72 3.28
1.14440918 4 1.14440918 2.00271606 3.72 4.28
1.8119812 6 1.8119812 2.28881836 5.72 6.28
EOD
$category2 << EOD
2.00271606 1 2.00271606 2.14576721 0.72 1.28
1.62124634 2 1.62124634 1.76429749 1.72 2.28
2.28881836 3 2.28881836 2.43186951 2.72 3.28
2.00271606 4 2.00271606 2.14576721 3.72 4.28
2.28881836 6 2.28881836 2.43186951 5.72 6.28
EOD
$category3 << EOD
2.14576721 1 2.14576721 2.43186951 0.72 1.28
1.76429749 2 1.76429749 2.0980835 1.72 2.28
2.43186951 3 2.43186951 2.7179718 2.72 3.28
2.14576721 4 2.14576721 2.43186951 3.72 4.28
2.43186951 6 2.43186951 2.7179718 5.72 6.28
EOD
$category4 << EOD
2.43186951 1 2.43186951 2.67028809 0.72 1.28
2.0980835 2 2.0980835 2.33650208 1.72 2.28
2.7179718 3 2.7179718 2.95639038 2.72 3.28
2.43186951 4 2.43186951 2.67028809 3.72 4.28
2.7179718 6 2.7179718 2.95639038 5.72 6.28
EOD
$category5 << EOD
2.67028809 1 2.67028809 4.00543213 0.72 1.28
2.33650208 2 2.33650208 3.67164612 1.72 2.28
2.95639038 3 2.95639038 4.29153442 2.72 3.28
2.67028809 4 2.67028809 4.00543213 3.72 4.28
2.95639038 6 2.95639038 4.29153442 5.72 6.28
EOD
$category6 << EOD
4.00543213 1 4.00543213 6.29620361 0.72 1.28
3.67164612 2 3.67164612 5.9624176 1.72 2.28
4.29153442 3 4.29153442 6.58230591 2.72 3.28
4.00543213 4 4.00543213 6.29620361 3.72 4.28
4.29153442 6 4.29153442 6.58230591 5.72 6.28
EOD
$category7 << EOD
6.29620361 1 6.29620361 6.33435059 0.72 1.28
5.9624176 2 5.9624176 6.00056458 1.72 2.28
6.58230591 3 6.58230591 6.62045288 2.72 3.28
6.29620361 4 6.29620361 6.33435059 3.72 4.28
6.58230591 6 6.58230591 6.62045288 5.72 6.28
EOD
plot $category0 using 1:2:3:4:5:6 with boxxyerror lc rgb '#332288', $category1 using 1:2:3:4:5:6 with boxxyerror lc rgb '#88ccee', $category2 using 1:2:3:4:5:6 with boxxyerror lc rgb '#44aa99', $category3 using 1:2:3:4:5:6 with boxxyerror lc rgb '#117733', $category4 using 1:2:3:4:5:6 with boxxyerror lc rgb '#999933', $category5 using 1:2:3:4:5:6 with boxxyerror lc rgb '#ddcc77', $category6 using 1:2:3:4:5:6 with boxxyerror lc rgb '#cc6677', $category7 using 1:2:3:4:5:6 with boxxyerror lc rgb '#882255'
