! Fortran 2008 interface of libterrace, over its C interface. SPDX-License-Identifier: Apache-2.0 OR MIT
!
! Handles are type(c_ptr). Functions return 0 or a negative code; terrace_error_text() returns the last
! error in full. terrace_allocate makes an array pointer in memory with the given attributes; free it with
! terrace_deallocate.
module terrace
  use, intrinsic :: iso_c_binding
  implicit none
  private

  integer(c_int), parameter, public :: TERRACE_CLASS_FASTEST = 0, TERRACE_CLASS_SLOWEST = -1
  integer(c_int), parameter, public :: TERRACE_CLASS_CUDA_MANAGED = 16384
  integer(c_int), parameter, public :: TERRACE_INDEX_ALL = -1, TERRACE_INDEX_LOCAL = -2
  integer(c_int), parameter, public :: TERRACE_SPLIT_OS = 0, TERRACE_SPLIT_SPILL_OVER = 1, TERRACE_SPLIT_EQUAL = 2
  integer(c_int), parameter, public :: TERRACE_BIND_IMMEDIATE = 0, TERRACE_BIND_ON_COMMIT = 1
  integer(c_int), parameter, public :: TERRACE_MISMATCH_ERROR = 0, TERRACE_MISMATCH_FALLBACK = 1
  integer(c_int), parameter, public :: TERRACE_COMMIT_EPOCH = 0, TERRACE_COMMIT_ALL = 1
  integer(c_int), parameter, public :: TERRACE_OK = 0, TERRACE_E_NO_ROOM = -4
  integer(c_int), parameter, public :: TERRACE_E_NO_CLASS = -2, TERRACE_E_CUDA = -20

  public :: terrace_memory_create, terrace_memory_destroy, terrace_memory_commit, terrace_memory_class_count
  public :: terrace_memory_describe, terrace_attr_create, terrace_attr_destroy, terrace_attr_add_class
  public :: terrace_attr_set_split, terrace_attr_set_binding, terrace_attr_set_mismatch, terrace_attr_set_priority
  public :: terrace_memory_class_nodes, terrace_attr_set_prefetch
  public :: terrace_attr_set_intensity, terrace_attr_name, terrace_report_count, terrace_report_got
  public :: terrace_report_destroy, terrace_allocate, terrace_deallocate, terrace_error_text

  interface
    integer(c_int) function terrace_memory_create(memory) bind(c)
      import :: c_int, c_ptr
      type(c_ptr), intent(out) :: memory
    end function
    subroutine terrace_memory_destroy(memory) bind(c)
      import :: c_ptr
      type(c_ptr), value :: memory
    end subroutine
    integer(c_int) function terrace_memory_class_count(memory) bind(c)
      import :: c_int, c_ptr
      type(c_ptr), value :: memory
    end function
    integer(c_int) function terrace_memory_class_nodes(memory, class_id) bind(c)
      import :: c_int, c_ptr
      type(c_ptr), value :: memory
      integer(c_int), value :: class_id
    end function
    integer(c_int) function terrace_memory_alloc(memory, bytes, wish, at) bind(c)
      import :: c_int, c_ptr, c_size_t
      type(c_ptr), value :: memory, wish
      integer(c_size_t), value :: bytes
      type(c_ptr), intent(out) :: at
    end function
    integer(c_int) function terrace_memory_free(memory, at) bind(c)
      import :: c_int, c_ptr
      type(c_ptr), value :: memory, at
    end function
    integer(c_int) function terrace_memory_commit(memory, scope, report) bind(c)
      import :: c_int, c_ptr
      type(c_ptr), value :: memory
      integer(c_int), value :: scope
      type(c_ptr), intent(out) :: report
    end function
    integer(c_int) function terrace_memory_describe(memory, at, report) bind(c)
      import :: c_int, c_ptr
      type(c_ptr), value :: memory, at
      type(c_ptr), intent(out) :: report
    end function
    integer(c_int) function terrace_attr_create(wish) bind(c)
      import :: c_int, c_ptr
      type(c_ptr), intent(out) :: wish
    end function
    subroutine terrace_attr_destroy(wish) bind(c)
      import :: c_ptr
      type(c_ptr), value :: wish
    end subroutine
    integer(c_int) function terrace_attr_add_class(wish, class_id, index) bind(c)
      import :: c_int, c_ptr
      type(c_ptr), value :: wish
      integer(c_int), value :: class_id, index
    end function
    integer(c_int) function terrace_attr_set_split(wish, split) bind(c)
      import :: c_int, c_ptr
      type(c_ptr), value :: wish
      integer(c_int), value :: split
    end function
    integer(c_int) function terrace_attr_set_binding(wish, binding) bind(c)
      import :: c_int, c_ptr
      type(c_ptr), value :: wish
      integer(c_int), value :: binding
    end function
    integer(c_int) function terrace_attr_set_mismatch(wish, mismatch) bind(c)
      import :: c_int, c_ptr
      type(c_ptr), value :: wish
      integer(c_int), value :: mismatch
    end function
    integer(c_int) function terrace_attr_set_priority(wish, priority) bind(c)
      import :: c_int, c_ptr, c_int32_t
      type(c_ptr), value :: wish
      integer(c_int32_t), value :: priority
    end function
    integer(c_int) function terrace_attr_set_intensity(wish, reads, writes) bind(c)
      import :: c_int, c_ptr, c_double
      type(c_ptr), value :: wish
      real(c_double), value :: reads, writes
    end function
    integer(c_int) function terrace_attr_set_prefetch(wish, prefetch) bind(c)
      import :: c_int, c_ptr
      type(c_ptr), value :: wish
      integer(c_int), value :: prefetch
    end function
    integer(c_int) function terrace_attr_set_name(wish, name) bind(c)
      import :: c_int, c_ptr, c_char
      type(c_ptr), value :: wish
      character(kind=c_char), intent(in) :: name(*)
    end function
    integer(c_size_t) function terrace_report_count(report) bind(c)
      import :: c_size_t, c_ptr
      type(c_ptr), value :: report
    end function
    integer(c_int64_t) function terrace_report_got(report, at, class_id) bind(c)
      import :: c_int64_t, c_int, c_ptr, c_size_t
      type(c_ptr), value :: report
      integer(c_size_t), value :: at
      integer(c_int), value :: class_id
    end function
    subroutine terrace_report_destroy(report) bind(c)
      import :: c_ptr
      type(c_ptr), value :: report
    end subroutine
    type(c_ptr) function terrace_last_error() bind(c)
      import :: c_ptr
    end function
    integer(c_size_t) function strlen(text) bind(c)
      import :: c_size_t, c_ptr
      type(c_ptr), value :: text
    end function
  end interface

  interface terrace_allocate
    module procedure allocate_r8_1, allocate_r8_2, allocate_r4_1
  end interface
  interface terrace_deallocate
    module procedure deallocate_r8_1, deallocate_r8_2, deallocate_r4_1
  end interface

contains

  ! Sets what reports call the allocation.
  integer(c_int) function terrace_attr_name(wish, name) result(code)
    type(c_ptr), intent(in) :: wish
    character(len=*), intent(in) :: name
    code = terrace_attr_set_name(wish, trim(name)//c_null_char)
  end function

  ! The calling thread's last error in full.
  function terrace_error_text() result(text)
    character(len=:), allocatable :: text
    character(kind=c_char), pointer :: bytes(:)
    type(c_ptr) :: at
    integer :: i, length
    at = terrace_last_error()
    length = int(strlen(at))
    allocate (character(len=length) :: text)
    if (length == 0) return
    call c_f_pointer(at, bytes, [length])
    do i = 1, length
      text(i:i) = bytes(i)
    end do
  end function

  integer(c_int) function allocate_r8_1(memory, wish, n, array) result(code)
    type(c_ptr), intent(in) :: memory, wish
    integer, intent(in) :: n
    real(c_double), pointer, intent(out) :: array(:)
    type(c_ptr) :: at
    nullify (array)
    code = terrace_memory_alloc(memory, int(n, c_size_t)*8_c_size_t, wish, at)
    if (code == 0) call c_f_pointer(at, array, [n])
  end function

  integer(c_int) function allocate_r8_2(memory, wish, n, m, array) result(code)
    type(c_ptr), intent(in) :: memory, wish
    integer, intent(in) :: n, m
    real(c_double), pointer, intent(out) :: array(:, :)
    type(c_ptr) :: at
    nullify (array)
    code = terrace_memory_alloc(memory, int(n, c_size_t)*int(m, c_size_t)*8_c_size_t, wish, at)
    if (code == 0) call c_f_pointer(at, array, [n, m])
  end function

  integer(c_int) function allocate_r4_1(memory, wish, n, array) result(code)
    type(c_ptr), intent(in) :: memory, wish
    integer, intent(in) :: n
    real(c_float), pointer, intent(out) :: array(:)
    type(c_ptr) :: at
    nullify (array)
    code = terrace_memory_alloc(memory, int(n, c_size_t)*4_c_size_t, wish, at)
    if (code == 0) call c_f_pointer(at, array, [n])
  end function

  integer(c_int) function deallocate_r8_1(memory, array) result(code)
    type(c_ptr), intent(in) :: memory
    real(c_double), pointer, intent(inout) :: array(:)
    code = terrace_memory_free(memory, c_loc(array(1)))
    nullify (array)
  end function

  integer(c_int) function deallocate_r8_2(memory, array) result(code)
    type(c_ptr), intent(in) :: memory
    real(c_double), pointer, intent(inout) :: array(:, :)
    code = terrace_memory_free(memory, c_loc(array(1, 1)))
    nullify (array)
  end function

  integer(c_int) function deallocate_r4_1(memory, array) result(code)
    type(c_ptr), intent(in) :: memory
    real(c_float), pointer, intent(inout) :: array(:)
    code = terrace_memory_free(memory, c_loc(array(1)))
    nullify (array)
  end function
end module
