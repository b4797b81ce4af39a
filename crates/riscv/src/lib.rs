//! RISC-V: decoding and execution of RV64IMAFDC with Zicsr, Zifencei, Zba and Zbb; processes with
//! the Linux system calls that programs make, behind a port; and machines that boot kernels. Pure:
//! the guest reaches the host through [`linux::Host`] and [`system::virtio::DiskImage`] only.
//!
//! [`decode`] turns words into [`decode::Instruction`]s and [`print`] into text;
//! [`execute::Hart`] executes them on a [`memory::GuestMemory`]; [`elf`] places a program there;
//! [`linux::Process`] answers its system calls. [`system::SystemMachine`] has machine, supervisor
//! and user mode, translation and devices, and boots kernels.
#![forbid(unsafe_code)]

mod compressed;
pub mod decode;
pub mod elf;
pub mod execute;
pub mod float;
pub mod linux;
#[cfg(test)]
mod lockstep;
pub mod memory;
pub mod operands;
pub mod print;
pub mod system;
