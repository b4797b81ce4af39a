# A bare machine: traps of three modes, translation, timer, serial port and disk. Each step prints a
# character, which a failure would leave out or change.
	.option norelax
	.option nopic
	.equ UART, 0x10000000
	.equ CLINT, 0x02000000
	.equ PLIC, 0x0c000000
	.equ DISK, 0x10001000
	.globl _start
_start:
	la	t0, trap
	csrw	mtvec, t0
	li	s0, UART
	# Traps of machine mode: L (11), D (3), C (2), F (5).
	ecall
	ebreak
	.word	0xffffffff
	ld	t2, 8(zero)
	# Supervisor mode: J (9), and C since mscratch is not its.
	li	t0, 0x1800
	csrc	mstatus, t0
	li	t0, 0x0800
	csrs	mstatus, t0
	la	t0, supervisor
	csrw	mepc, t0
	mret
supervisor:
	ecall
	csrr	t2, mscratch
	# User mode: I (8), C since sstatus is not its.
	li	t0, 0x100
	csrc	sstatus, t0
	la	t0, user
	csrw	sepc, t0
	sret
user:
	ecall
	csrr	t2, sstatus
	# The handler comes back to machine mode when t6 says so.
	la	t6, machine
	ecall
machine:
	li	t6, 0
	# Sv39: the first gigabytes as they are, by two large pages; 0x4000000000 does not exist, and
	# 0x40000000 leads to the page of `cell` by small pages, read-only.
	la	t0, root
	li	t1, 0x000000cf		# 0 to 1 GiB, readable, writable, executable
	sd	t1, 0(t0)
	li	t1, 0x200000cf		# 0x80000000
	sd	t1, 16(t0)
	la	t1, middle
	srli	t1, t1, 2
	ori	t1, t1, 1
	sd	t1, 8(t0)
	la	t2, middle
	la	t1, leaf
	srli	t1, t1, 2
	ori	t1, t1, 1
	sd	t1, 0(t2)
	la	t2, leaf
	la	t1, cell
	srli	t1, t1, 2
	ori	t1, t1, 0x43		# valid, readable, accessed
	sd	t1, 0(t2)
	srli	t0, t0, 12
	li	t1, 8
	slli	t1, t1, 60
	or	t0, t0, t1
	csrw	satp, t0
	sfence.vma
	li	t0, 0x1800
	csrc	mstatus, t0
	li	t0, 0x0800
	csrs	mstatus, t0
	la	t0, translated
	csrw	mepc, t0
	mret
translated:
	li	t0, 0x40000000
	ld	t1, 0(t0)
	sb	t1, 0(s0)		# t, from `cell`
	sd	t1, 0(t0)		# P (15): read-only
	li	t0, 0x40001000
	ld	t1, 0(t0)		# N (13): no page
	li	t0, 0x100000000000
	ld	t1, 0(t0)		# N (13): no address of Sv39
	la	t6, interrupts
	ecall				# J
interrupts:
	li	t6, 0
	# The timer, taken while waiting: prints H (7) and switches itself off.
	li	t0, CLINT
	li	t1, 0xbff8
	add	t1, t0, t1
	ld	t2, 0(t1)
	addi	t2, t2, 50
	li	t1, 0x4000
	add	t1, t0, t1
	sd	t2, 0(t1)
	li	t0, 0x880
	csrw	mie, t0
	csrsi	mstatus, 8
	wfi
	nop
	# The serial port by way of the PLIC: echoes what is typed.
	li	t0, PLIC
	li	t1, 1
	sw	t1, 40(t0)
	sw	t1, 4(t0)
	li	t1, 0x402
	li	t2, 0x2000
	add	t2, t0, t2
	sw	t1, 0(t2)
	sb	zero, 2(s0)
	li	t1, 1
	sb	t1, 1(s0)
1:	la	t0, echoed
	lb	t0, 0(t0)
	beqz	t0, 1b
	# The disk: reads sector 1, and writes what it read, one larger, to sector 2.
	li	s1, DISK
	li	t0, 15
	sw	t0, 0x70(s1)
	li	t0, 8
	sw	t0, 0x38(s1)
	la	t0, descriptors
	sw	t0, 0x80(s1)
	la	t0, available
	sw	t0, 0x90(s1)
	la	t0, used
	sw	t0, 0xa0(s1)
	li	t0, 1
	sw	t0, 0x44(s1)
	li	a0, 0			# read
	li	a1, 1			# sector
	li	a2, 3			# next, written by the device
	call	request
	la	t0, buffer
	lb	t1, 0(t0)
	sb	t1, 0(s0)
	addi	t1, t1, 1
	sb	t1, 0(t0)
	li	a0, 1
	li	a1, 2
	li	a2, 1
	call	request
	li	t0, 0x21
	sb	t0, 0(s0)		# !
	csrw	mie, zero
1:	wfi
	j	1b

# Asks the disk and waits for its interrupt.
request:
	la	t0, header
	sw	a0, 0(t0)
	sd	a1, 8(t0)
	la	t1, descriptors
	sd	t0, 0(t1)
	li	t2, 16
	sw	t2, 8(t1)
	li	t2, 0x10001		# next, descriptor 1
	sw	t2, 12(t1)
	la	t0, buffer
	sd	t0, 16(t1)
	li	t2, 512
	sw	t2, 24(t1)
	li	t2, 0x20000
	or	t2, t2, a2
	sw	t2, 28(t1)
	la	t0, status
	li	t2, 1
	sd	t0, 32(t1)
	sw	t2, 40(t1)
	li	t2, 2
	sw	t2, 44(t1)
	la	t0, available
	lhu	t2, 2(t0)
	addi	t2, t2, 1
	sh	t2, 2(t0)
	la	t3, served
	sb	zero, 0(t3)
	sw	zero, 0x50(s1)
1:	lb	t4, 0(t3)
	beqz	t4, 1b
	la	t0, status
	lb	t0, 0(t0)
	addi	t0, t0, 0x30
	sb	t0, 0(s0)		# 0: done
	ret

	.balign	4
trap:
	csrw	mscratch, t1
	csrr	t1, mcause
	bltz	t1, interrupt
	addi	t1, t1, 'A'
	sb	t1, 0(s0)
	csrr	t1, mepc
	addi	t1, t1, 4
	csrw	mepc, t1
	beqz	t6, 1f
	csrw	mepc, t6
	li	t1, 0x1800
	csrs	mstatus, t1
1:	csrr	t1, mscratch
	mret
interrupt:
	andi	t1, t1, 15
	sd	t2, save, t3
	li	t2, 7
	bne	t1, t2, external
	addi	t1, t1, 'A'
	sb	t1, 0(s0)
	li	t2, CLINT + 0x4000
	li	t1, -1
	sd	t1, 0(t2)
	j	2f
external:
	li	t2, PLIC + 0x200004
	lw	t1, 0(t2)
	li	t3, 10
	bne	t1, t3, 1f
	lb	t3, 0(s0)
	sb	t3, 0(s0)
	la	t2, echoed
	sb	t3, 0(t2)
	j	3f
1:	li	t3, DISK
	lw	t2, 0x60(t3)
	sw	t2, 0x64(t3)
	la	t2, served
	sb	t1, 0(t2)
3:	li	t2, PLIC + 0x200004
	sw	t1, 0(t2)
2:	ld	t2, save
	la	t3, served
	csrr	t1, mscratch
	mret

	.balign	4096
root:	.space	4096
middle:	.space	4096
leaf:	.space	4096
cell:	.quad	't'
save:	.quad	0
header:	.quad	0, 0
echoed:	.byte	0
served:	.byte	0
status:	.byte	9
	.balign	4096
descriptors: .space 128
available: .space 64
	.balign	64
used:	.space	128
buffer:	.space	512
