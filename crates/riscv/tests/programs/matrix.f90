! Matrices, intrinsic functions and formatted output of Fortran.
program matrix
  implicit none
  integer, parameter :: n = 40
  real(8) :: a(n, n), b(n), x(n), factor
  complex(8) :: z
  integer :: i, j, k, seed(8)
  character(len=20) :: text
  do j = 1, n
     do i = 1, n
        a(i, j) = 1.0d0 / (i + j - 1) + merge(2.0d0, 0.0d0, i == j)
     end do
     b(j) = sqrt(real(j, 8))
  end do
  do k = 1, n - 1
     do i = k + 1, n
        factor = a(i, k) / a(k, k)
        a(i, k:n) = a(i, k:n) - factor * a(k, k:n)
        b(i) = b(i) - factor * b(k)
     end do
  end do
  do k = n, 1, -1
     x(k) = (b(k) - dot_product(a(k, k + 1:n), x(k + 1:n))) / a(k, k)
  end do
  print '(3es24.16)', sum(x), maxval(x), norm2(x)
  z = exp((0.0d0, 1.0d0) * 2) ** 3
  write (*, '(2f20.15, i8, l3)') z, nint(1.0d5 * real(z)), any(x < 0)
  write (text, '(z16.16)') transfer(x(1), 1_8)
  print *, trim(text), bessel_j0(1.5d0), gamma(3.5d0)
  text = '17 4.25 word'
  read (text, *) i, factor
  print *, i, factor, text, matmul(reshape([1, 2, 3, 4], [2, 2]), [5, 6])
  stop 4
end program matrix
