! A program that knows its loads and stores: of each of two arrays a thousand of eight bytes. Says where the first begins and
! how long each is, as hooked.c does.
program hooked
  use iso_c_binding
  implicit none
  integer(c_int64_t), volatile, target, save :: array(1000, 2)
  integer(c_int64_t) :: sum
  integer :: i
  do i = 1, 1000
    array(i, 1) = i
  end do
  do i = 1, 1000
    array(i, 2) = 2 * array(i, 1)
  end do
  sum = 0
  do i = 1, 1000
    sum = sum + array(i, 2)
  end do
  print '("0x", z0, " ", i0)', transfer(c_loc(array), 0_c_int64_t), 8000
  if (sum == 1001000) call exit(7)
end program hooked
