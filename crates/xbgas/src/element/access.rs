//! Extended instructions of an element: what each asks of which memory, and what becomes of the
//! answer.

use super::issued::{IssuedAccess, ReplyTarget};
use super::observe::{ElementsObserver, IssuingInstruction};
use super::{ElementFault, ElementMachine, ProcessingElement};
use crate::decode::{Dialect, ExtendedInstruction};
use crate::execute::{ExtendedAddress, ExtendedEffect, TargetRegister};
use crate::lookaside::{ObjectMemory, ObjectTable};
use crate::protocol::{serve, RemoteAction, RemoteReply, RemoteRequest};
use terrace_riscv::linux::Host;
use terrace_riscv::memory::{READ, WRITE};

/// What all elements know: how instructions are encoded, and what object ids name.
#[derive(Debug, Clone)]
pub(super) struct ObjectSpace {
    pub dialect: Dialect,
    pub objects: ObjectTable,
    /// The elements that serve files, by the files' numbers.
    pub file_servers: Vec<u32>,
    /// Elements that there are.
    pub elements: u32,
}

impl ObjectSpace {
    pub(super) fn decode(&self, word: u32) -> Result<ExtendedInstruction, ElementFault> {
        ExtendedInstruction::decode(self.dialect, word).ok_or(ElementFault::Illegal(word))
    }
}

/// What an instruction comes to.
pub(super) enum IssuedInstruction {
    Set { register: TargetRegister, value: u64 },
    Access(IssuedAccess),
}

impl<H: Host> ElementMachine<H> {
    /// Executes an extended instruction of an element's thread at once, program counter included.
    pub(super) fn execute<O: ElementsObserver>(
        &mut self,
        index: usize,
        thread: u32,
        word: u32,
        observer: &mut O,
    ) -> Result<(), ElementFault> {
        let instruction = self.space.decode(word)?;
        let element = &mut self.elements[index];
        match element.issue(&self.space, thread, &instruction)? {
            IssuedInstruction::Set { register, value } => {
                element.set_register(thread, register, value);
            }
            IssuedInstruction::Access(access) => {
                let issuer = element.issuing(thread);
                let reply = self.serve(access.memory, access.server, &access.request)?;
                self.elements[index].complete(thread, access.target, &reply)?;
                issuer.show(&access, observer);
            }
        }
        self.elements[index].retire(thread);
        Ok(())
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
}

impl<H: Host> ProcessingElement<H> {
    /// The instruction that a thread is at.
    pub(super) fn issuing(&mut self, thread: u32) -> IssuingInstruction {
        let (pc, instret) =
            self.process.hart_mut(thread).map_or((0, 0), |hart| (hart.pc, hart.instret));
        IssuingInstruction { element: self.number, thread, pc, instret }
    }

    /// What an instruction asks for; its address is translated and checked, and counted.
    pub(super) fn issue(
        &mut self,
        space: &ObjectSpace,
        thread: u32,
        instruction: &ExtendedInstruction,
    ) -> Result<IssuedInstruction, ElementFault> {
        let registers = self.registers.get(&thread).unwrap_or(&[0; 32]);
        let x = self.process.hart_mut(thread).map_or([0; 32], |hart| hart.x);
        let step = |stride: i64, bytes: u8| stride.wrapping_mul(i64::from(bytes));
        let mut own_side = None;
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
                own_side = Some(local);
                let target = ReplyTarget::Memory { address: local, bytes, step };
                (at, RemoteAction::LoadMany { bytes, count, step }, target)
            }
            ExtendedEffect::Bulk { at, local, bytes, count, stride, stored: true } => {
                let step = step(stride, bytes);
                own_side = Some(local);
                let request = RemoteRequest {
                    address: local,
                    action: RemoteAction::LoadMany { bytes, count, step },
                };
                let element = self.number;
                let read = serve(self.process.memory_mut(), &request)
                    .map_err(|refusal| ElementFault::Refused { element, refusal })?;
                let RemoteReply::Bytes(data) = read else {
                    return Err(ElementFault::Illegal(0));
                };
                (at, RemoteAction::StoreMany { bytes, data, step }, ReplyTarget::Nowhere)
            }
        };
        let access = self.reach(space, at, action, target)?;
        Ok(IssuedInstruction::Access(IssuedAccess { local: own_side, ..access }))
    }

    /// The memory that has an object, after the check of permissions; counts the access.
    fn reach(
        &mut self,
        space: &ObjectSpace,
        at: ExtendedAddress,
        action: RemoteAction,
        target: ReplyTarget,
    ) -> Result<IssuedAccess, ElementFault> {
        let own = self.number as usize;
        let Self { lookaside, statistics, .. } = self;
        let object = at.object;
        let address = at.address;
        if object == 0 {
            statistics.local_accesses += 1;
            let memory = ObjectMemory::Element(own as u32);
            let request = RemoteRequest { address, action };
            return Ok(IssuedAccess { memory, server: own, request, target, local: None });
        }
        let unknown = || ElementFault::UnknownObject(object);
        let place = lookaside.translate(&space.objects, object).ok_or_else(unknown)?;
        let server = match place.memory {
            ObjectMemory::Element(element) => Some(element),
            ObjectMemory::File(file) => space.file_servers.get(file as usize).copied(),
        };
        let server = server.filter(|element| *element < space.elements);
        let server = server.ok_or_else(unknown)? as usize;
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
        if server == own {
            statistics.local_accesses += 1;
        } else {
            let count =
                if reads { &mut statistics.remote_loads } else { &mut statistics.remote_stores };
            *count += 1;
            statistics.remote_bytes += there + back;
        }
        let request = RemoteRequest { address: address.wrapping_add(place.base), action };
        Ok(IssuedAccess { memory: place.memory, server, request, target, local: None })
    }

    /// Puts an answer where it belongs.
    pub(super) fn complete(
        &mut self,
        thread: u32,
        target: ReplyTarget,
        reply: &RemoteReply,
    ) -> Result<(), ElementFault> {
        match (target, reply) {
            (ReplyTarget::Register(register), RemoteReply::Value(value)) => {
                self.set_register(thread, register, *value);
            }
            (ReplyTarget::Memory { address, bytes, step }, RemoteReply::Bytes(data)) => {
                let memory = self.process.memory_mut();
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

    pub(super) fn set_register(&mut self, thread: u32, register: TargetRegister, value: u64) {
        match register {
            TargetRegister::Base(0) => {}
            TargetRegister::Base(register) => {
                if let Some(hart) = self.process.hart_mut(thread) {
                    hart.x[usize::from(register) & 31] = value;
                }
            }
            TargetRegister::Extended(register) => {
                let registers = self.registers.entry(thread).or_insert([0; 32]);
                registers[usize::from(register) & 31] = value;
            }
        }
    }

    /// An extended instruction is done with.
    pub(super) fn retire(&mut self, thread: u32) {
        if let Some(hart) = self.process.hart_mut(thread) {
            hart.pc = hart.pc.wrapping_add(4);
            hart.instret += 1;
        }
    }
}
