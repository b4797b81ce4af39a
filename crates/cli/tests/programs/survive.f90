! A counter in memory, as survive.c has it, by the Fortran module.
program survive
    use, intrinsic :: iso_c_binding
    use terrace_crash
    implicit none
    real(c_double), target, save :: x(1024) = 0
    integer(c_int), target, save :: done = 0
    integer :: it
    call critical_data('x', 'double', c_loc(x), 1024_c_int64_t)
    call consistent_data('done', 'int', c_loc(done), 1_c_int64_t)
    it = int(crash_restore())
    if (it /= done) stop 3
    call write_back_invalidate_cache()
    call start_crash()
    do it = done + 1, 10
        call crash_phase(1)
        x = x + 1
        call crash_phase(2)
        call flush_cache_line(c_loc(x))
        done = it
        call cache_line_write_back(c_loc(done))
    end do
    call end_crash()
    if (any(x /= 10)) stop 1
end program
