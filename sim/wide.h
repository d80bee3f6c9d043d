/* sim/wide.h -- 128-bit integers, which ISO C does not have: bytes times picoseconds, and the picoseconds of a second. */
#ifndef LS_SIM_WIDE_H
#define LS_SIM_WIDE_H

__extension__ typedef unsigned __int128 ls_wide;
__extension__ typedef __int128 ls_signed_wide;

#define LS_PS_PER_S 1000000000000u

#endif
