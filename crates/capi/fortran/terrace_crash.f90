! terrace_crash.f90: terrace_crash.h for Fortran. Compile terrace_crash.c beside it into the program.
!
!   use terrace_crash
!   call critical_data('x', 'double', c_loc(x), int(n, c_int64_t))
!   call consistent_data('done', 'int', c_loc(done), 1_c_int64_t)
!   first = int(crash_restore()) + 1
!   call write_back_invalidate_cache()
!   call start_crash()
module terrace_crash
    use, intrinsic :: iso_c_binding, only: c_int, c_int64_t, c_ptr, c_char, c_null_char
    implicit none
    private
    public :: start_crash, end_crash, crash_restore, critical_data, consistent_data, readonly_data
    public :: crash_phase
    public :: cache_line_write_back, flush_cache_line, write_back_invalidate_cache

    interface
        subroutine start_crash() bind(c, name='start_crash')
        end subroutine
        subroutine end_crash() bind(c, name='end_crash')
        end subroutine
        function crash_restore() result(iteration) bind(c, name='crash_restore')
            import :: c_int64_t
            integer(c_int64_t) :: iteration
        end function
        subroutine crash_phase(number) bind(c, name='terrace_crash_phase')
            import :: c_int
            integer(c_int), value :: number
        end subroutine
        subroutine cache_line_write_back(pointer) bind(c, name='terrace_crash_write_back')
            import :: c_ptr
            type(c_ptr), value :: pointer
        end subroutine
        subroutine flush_cache_line(pointer) bind(c, name='terrace_crash_flush')
            import :: c_ptr
            type(c_ptr), value :: pointer
        end subroutine
        subroutine write_back_invalidate_cache() bind(c, name='terrace_crash_flush_all')
        end subroutine
        subroutine name_object(kind, name, pointer, type, count) bind(c, name='terrace_crash_name')
            import :: c_ptr, c_char, c_int64_t
            integer(c_int64_t), value :: kind, count
            character(kind=c_char), intent(in) :: name(*), type(*)
            type(c_ptr), value :: pointer
        end subroutine
    end interface

contains

    subroutine critical_data(name, type, pointer, count)
        character(len=*), intent(in) :: name, type
        type(c_ptr), intent(in) :: pointer
        integer(c_int64_t), intent(in) :: count
        call name_object(1_c_int64_t, name // c_null_char, pointer, type // c_null_char, count)
    end subroutine

    subroutine consistent_data(name, type, pointer, count)
        character(len=*), intent(in) :: name, type
        type(c_ptr), intent(in) :: pointer
        integer(c_int64_t), intent(in) :: count
        call name_object(2_c_int64_t, name // c_null_char, pointer, type // c_null_char, count)
    end subroutine

    subroutine readonly_data(name, type, pointer, count)
        character(len=*), intent(in) :: name, type
        type(c_ptr), intent(in) :: pointer
        integer(c_int64_t), intent(in) :: count
        call name_object(3_c_int64_t, name // c_null_char, pointer, type // c_null_char, count)
    end subroutine
end module terrace_crash
