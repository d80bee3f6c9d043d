# The look of every figure; the plot itself follows.
set terminal svg size {{width}},{{height}} dynamic background "#ffffff" font "Helvetica,Arial,sans-serif,{{font}}" name "{{name}}" butt noenhanced
set encoding utf8
set border 3 lc rgb '#777777'
set tics nomirror out scale 0.5 textcolor rgb '#1a1a1a'
set xlabel textcolor rgb '#1a1a1a'
set grid xtics noytics lc rgb '#dddddd' lw 1 lt 1
set style fill solid 1.0 noborder
