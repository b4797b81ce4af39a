//! Extended instructions of an element: what each asks of which memory, and what becomes of the
//! answer.

use super::{ElementFault, ElementMachine, ProcessingElement};
use crate::decode::ExtendedInstruction;
use crate::execute::{ExtendedAddress, ExtendedEffect, TargetRegister};
use crate::lookaside::ObjectMemory;
use crate::protocol::{serve, RemoteAction, RemoteReply, RemoteRequest};
use terrace_riscv::linux::Host;
use terrace_riscv::memory::{READ, WRITE};

/// Where an answer goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplyTarget {
    Nowhere,
    Register(TargetRegister),
    /// Elements of so many bytes, so many bytes apart.
    Memory {
        address: u64,
        bytes: u8,
        step: i64,
    },
}

/// A request of an element, addressed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IssuedAccess {
    pub memory: ObjectMemory,
    /// The element that serves it.
    pub server: usize,
    pub request: RemoteRequest,
    pub target: ReplyTarget,
}

/// What an instruction comes to.
pub(super) enum IssuedInstruction {
    Set { register: TargetRegister, value: u64 },
    Access(IssuedAccess),
}

impl<H: Host> ElementMachine<H> {
    /// Executes an extended instruction of an element's thread at once, program counter included.
    pub(super) fn execute(
        &mut self,
        index: usize,
        thread: u32,
        word: u32,
    ) -> Result<(), ElementFault> {
        let instruction = self.decode(word)?;
        match self.issue(index, thread, &instruction)? {
            IssuedInstruction::Set { register, value } => {
                self.set_register(index, thread, register, value);
            }
            IssuedInstruction::Access(access) => {
                let reply = self.serve(access.memory, access.server, &access.request)?;
                self.complete(index, thread, access.target, &reply)?;
            }
        }
        self.retire(index, thread);
        Ok(())
    }

    pub(super) fn decode(&self, word: u32) -> Result<ExtendedInstruction, ElementFault> {
        ExtendedInstruction::decode(self.dialect, word).ok_or(ElementFault::Illegal(word))
    }

    /// What an instruction asks for; its address is translated and checked, and counted.
    pub(super) fn issue(
        &mut self,
        index: usize,
        thread: u32,
        instruction: &ExtendedInstruction,
    ) -> Result<IssuedInstruction, ElementFault> {
        let element = &mut self.elements[index];
        let registers = element.registers.get(&thread).unwrap_or(&[0; 32]);
        let x = element.process.hart_mut(thread).map_or([0; 32], |hart| hart.x);
        let step = |stride: i64, bytes: u8| stride.wrapping_mul(i64::from(bytes));
        let (at, action, target) = match instruction.effect(&x, registers)? {
            ExtendedEffect::Set { register, value } => {
                return Ok(IssuedInstruction::Set { register, value });
            }
            ExtendedEffect::Load { at, bytes, signed, register } => {
                (at, RemoteAction::Load { bytes, signed }, ReplyTarget::Register(register))
            }
            ExtendedEffect::Store { at, bytes, value } => {
                (at, RemoteAction::Store { bytes, value }, ReplyTarget::Nowhere)
            }
            ExtendedEffect::Atomic { at, bytes, operation, operand, expected, register } => {
                let action = RemoteAction::Atomic { bytes, operation, operand, expected };
                (at, action, ReplyTarget::Register(register))
            }
            ExtendedEffect::Bulk { at, local, bytes, count, stride, stored: false } => {
                let step = step(stride, bytes);
                let target = ReplyTarget::Memory { address: local, bytes, step };
                (at, RemoteAction::LoadMany { bytes, count, step }, target)
            }
            ExtendedEffect::Bulk { at, local, bytes, count, stride, stored: true } => {
                let step = step(stride, bytes);
                let request = RemoteRequest {
                    address: local,
                    action: RemoteAction::LoadMany { bytes, count, step },
                };
                let local = ObjectMemory::Element(index as u32);
                let RemoteReply::Bytes(data) = self.serve(local, index, &request)? else {
                    return Err(ElementFault::Illegal(0));
                };
                (at, RemoteAction::StoreMany { bytes, data, step }, ReplyTarget::Nowhere)
            }
        };
        self.reach(index, at, action, target).map(IssuedInstruction::Access)
    }

    /// The memory that has an object, after the check of permissions; counts the access.
    fn reach(
        &mut self,
        index: usize,
        at: ExtendedAddress,
        action: RemoteAction,
        target: ReplyTarget,
    ) -> Result<IssuedAccess, ElementFault> {
        let elements = self.elements.len();
        let ProcessingElement { lookaside, statistics, .. } = &mut self.elements[index];
        let object = at.object;
        let address = at.address;
        if object == 0 {
            statistics.local_accesses += 1;
            let memory = ObjectMemory::Element(index as u32);
            let request = RemoteRequest { address, action };
            return Ok(IssuedAccess { memory, server: index, request, target });
        }
        let unknown = || ElementFault::UnknownObject(object);
        let place = lookaside.translate(&self.objects, object).ok_or_else(unknown)?;
        let server = match place.memory {
            ObjectMemory::Element(element) => Some(element),
            ObjectMemory::File(file) => self.files.get(file as usize).map(|file| file.element),
        };
        let server = server.map(|element| element as usize).filter(|element| *element < elements);
        let server = server.ok_or_else(unknown)?;
        let (reads, writes) = action.needs();
        for (needed, bit) in [(reads, READ), (writes, WRITE)] {
            if needed && place.permissions & bit == 0 {
                return Err(ElementFault::Forbidden { object, stored: bit == WRITE });
            }
        }
        let (there, back) = action.data_bytes();
        if place.length != u64::MAX && there + back > 0 {
            let last = action.span(address).map_or(u64::MAX, |(_, last)| last);
            if last >= place.length {
                return Err(ElementFault::Outside { object, length: place.length, address: last });
            }
        }
        if server == index {
            statistics.local_accesses += 1;
        } else {
            let count =
                if reads { &mut statistics.remote_loads } else { &mut statistics.remote_stores };
            *count += 1;
            statistics.remote_bytes += there + back;
        }
        let request = RemoteRequest { address: address.wrapping_add(place.base), action };
        Ok(IssuedAccess { memory: place.memory, server, request, target })
    }

    /// Lets the memory that has an object answer a request.
    pub(super) fn serve(
        &mut self,
        memory: ObjectMemory,
        server: usize,
        request: &RemoteRequest,
    ) -> Result<RemoteReply, ElementFault> {
        let memory = match memory {
            ObjectMemory::Element(_) => self.elements[server].process.memory_mut(),
            ObjectMemory::File(file) => &mut self.files[file as usize].memory,
        };
        let element = server as u32;
        serve(memory, request).map_err(|refusal| ElementFault::Refused { element, refusal })
    }

    /// Puts an answer where it belongs.
    pub(super) fn complete(
        &mut self,
        index: usize,
        thread: u32,
        target: ReplyTarget,
        reply: &RemoteReply,
    ) -> Result<(), ElementFault> {
        match (target, reply) {
            (ReplyTarget::Register(register), RemoteReply::Value(value)) => {
                self.set_register(index, thread, register, *value);
            }
            (ReplyTarget::Memory { address, bytes, step }, RemoteReply::Bytes(data)) => {
                let memory = self.elements[index].process.memory_mut();
                let parts = data.chunks_exact(usize::from(bytes.max(1)));
                for (element, part) in (0_i64..).zip(parts) {
                    let offset = element.wrapping_mul(step) as u64;
                    memory.write(address.wrapping_add(offset), part)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn set_register(
        &mut self,
        index: usize,
        thread: u32,
        register: TargetRegister,
        value: u64,
    ) {
        let element = &mut self.elements[index];
        match register {
            TargetRegister::Base(0) => {}
            TargetRegister::Base(register) => {
                if let Some(hart) = element.process.hart_mut(thread) {
                    hart.x[usize::from(register) & 31] = value;
                }
            }
            TargetRegister::Extended(register) => {
                let registers = element.registers.entry(thread).or_insert([0; 32]);
                registers[usize::from(register) & 31] = value;
            }
        }
    }

    /// An extended instruction is done with.
    pub(super) fn retire(&mut self, index: usize, thread: u32) {
        if let Some(hart) = self.elements[index].process.hart_mut(thread) {
            hart.pc = hart.pc.wrapping_add(4);
            hart.instret += 1;
        }
    }
}
