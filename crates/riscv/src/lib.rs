//! RISC-V: decoding and execution of RV64IMAFDC with Zicsr, Zifencei, Zba and Zbb in user mode,
//! and the Linux system calls that static programs make, behind a port. Pure: the guest reaches
//! the host through [`linux::Host`] only.
//!
//! [`decode`] turns words into [`decode::Instruction`]s and [`print`] into text;
//! [`execute::Hart`] executes them on a [`memory::GuestMemory`]; [`elf`] places a program there;
//! [`linux::Process`] answers its system calls.
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
