! Derived types, modules, allocation, recursion and single precision.
module bodies
  implicit none
  type body
     real(4) :: place(3), speed(3), mass
  end type body
contains
  recursive integer(8) function ackermann(m, n) result(r)
    integer(8), intent(in) :: m, n
    if (m == 0) then
       r = n + 1
    else if (n == 0) then
       r = ackermann(m - 1, 1_8)
    else
       r = ackermann(m - 1, ackermann(m, n - 1))
    end if
  end function ackermann
  pure function energy(all) result(e)
    type(body), intent(in) :: all(:)
    real(4) :: e
    integer :: i, j
    e = 0
    do i = 1, size(all)
       e = e + 0.5 * all(i)%mass * sum(all(i)%speed ** 2)
       do j = i + 1, size(all)
          e = e - all(i)%mass * all(j)%mass / sqrt(sum((all(i)%place - all(j)%place) ** 2))
       end do
    end do
  end function energy
end module bodies
program particles
  use bodies
  implicit none
  type(body), allocatable :: all(:)
  integer :: i, j, step
  real(4) :: d(3)
  allocate (all(12))
  do i = 1, 12
     all(i) = body([sin(1.0 * i), cos(2.0 * i), 0.1 * i], [0.0, 0.1, 0.01 * i], 1.0 / i)
  end do
  print '(f14.8)', energy(all)
  do step = 1, 200
     do i = 1, 12
        do j = 1, 12
           if (i == j) cycle
           d = all(j)%place - all(i)%place
           all(i)%speed = all(i)%speed + 0.0005 * all(j)%mass * d / (dot_product(d, d) + 0.01) ** 1.5
        end do
     end do
     do i = 1, 12
        all(i)%place = all(i)%place + 0.0005 * all(i)%speed
     end do
  end do
  print '(f14.8, i8)', energy(all), ackermann(2_8, 40_8)
end program particles
