//! The program's own instructions, as they run from the cache.

use super::*;

impl Maker {
    /// The program's instruction itself.
    pub(super) fn execute(
        &mut self,
        instruction: &Instruction,
        raw: &[u8],
        factory: &mut InstructionInfoFactory,
    ) -> Result<(), &'static str> {
        let used = factory.info(instruction).used_registers();
        let mut kept: [Option<(u8, bool, bool)>; 2] = [None; 2];
        let mut mentioned = 1u16 << RSP | 1 << RING | 1 << SCRATCH;
        for register in used {
            let Some(n) = number(register.register()) else { continue };
            mentioned |= 1 << n;
            if n != RING && n != SCRATCH {
                continue;
            }
            use OpAccess::{CondWrite, ReadCondWrite, ReadWrite, Write};
            let whole = register.access() == Write && register.register().size() >= 4;
            let writes = matches!(register.access(), Write | CondWrite | ReadWrite | ReadCondWrite);
            let entry = &mut kept[usize::from(n == RING)];
            let (_, read, written) = entry.unwrap_or((n, false, false));
            *entry = Some((n, read || !whole, written || writes));
        }
        let relative = instruction.is_ip_rel_memory_operand();
        if kept == [None; 2] && !relative {
            self.place(instruction.ip(), [None; 2]);
            self.code.put(raw);
            return self.watch_fs(instruction);
        }
        if relative && kept == [None; 2] && instruction.code() == Op::Lea_r64_m {
            let Some(to) = number(instruction.op0_register()) else {
                return Err("it is an address of no register");
            };
            self.code.constant(to, instruction.ip_rel_memory_address());
            return Ok(());
        }
        // The scratch register stands in for the first, borrowed ones for the others.
        let high = (0..instruction.op_count()).any(|i| {
            let r = instruction.op_register(i);
            instruction.op_kind(i) == OpKind::Register && (Register::AH..=Register::BH).contains(&r)
        });
        let order: [u8; 13] = [8, 9, 10, 11, 12, 13, 3, 1, 2, 0, 6, 7, 5];
        let mut free = order.into_iter().filter(|r| mentioned >> r & 1 == 0 && !(high && *r > 7));
        let mut stands = core::iter::once(SCRATCH).filter(|_| !high);
        let mut borrowed = [None; 2];
        let mut changed = *instruction;
        let mut takes = |maker: &mut Self| -> Result<u8, &'static str> {
            if let Some(r) = stands.next() {
                return Ok(r);
            }
            let r = free.next().ok_or("it leaves no register free")?;
            let slot =
                borrowed.iter().position(Option::is_none).ok_or("it needs too many registers")?;
            borrowed[slot] = Some(r);
            maker.code.store_gs(at!(save) + 8 * slot as i32, r);
            Ok(r)
        };
        let mut after: [Option<(u8, u8)>; 2] = [None; 2];
        for (slot, entry) in kept.into_iter().enumerate() {
            let Some((n, read, written)) = entry else { continue };
            let stand = takes(self)?;
            if read {
                self.code.load_gs(stand, home(n));
            }
            replace(&mut changed, n, stand);
            after[slot] = Some((n, stand)).filter(|_| written);
        }
        if relative {
            let stand = takes(self)?;
            self.code.constant(stand, instruction.ip_rel_memory_address());
            changed.set_memory_base(Register::RAX + u32::from(stand));
            changed.set_memory_displacement64(0);
            changed.set_memory_displ_size(0);
        }
        self.place(instruction.ip(), borrowed);
        self.encode(&changed)?;
        for (n, stand) in after.into_iter().flatten() {
            self.code.store_gs(home(n), stand);
        }
        for (slot, r) in borrowed.into_iter().enumerate() {
            if let Some(r) = r {
                self.code.load_gs(r, at!(save) + 8 * slot as i32);
            }
        }
        self.watch_fs(instruction)
    }

    /// A program that sets FS by itself.
    pub(super) fn watch_fs(&mut self, instruction: &Instruction) -> Result<(), &'static str> {
        if instruction.code() == Op::Wrfsbase_r64 {
            let Some(n) = number(instruction.op0_register()) else { return Ok(()) };
            if n == RING || n == SCRATCH {
                self.code.load_gs(SCRATCH, home(n));
                self.code.store_gs(at!(fs_base), SCRATCH);
            } else {
                self.code.store_gs(at!(fs_base), n);
            }
        }
        Ok(())
    }

    pub(super) fn encode(&mut self, instruction: &Instruction) -> Result<(), &'static str> {
        let at = self.code.here();
        self.encoder
            .encode(instruction, at)
            .map_err(|_| "it cannot be encoded with another register")?;
        let mut bytes = self.encoder.take_buffer();
        self.code.put(&bytes);
        bytes.clear();
        self.encoder.set_buffer(bytes);
        Ok(())
    }

    /// A string instruction that repeats, step by step; each step is a block of one instruction.
    pub(super) fn repeated(
        &mut self,
        plan: &Plan,
        block: u32,
        before: &[u64],
    ) -> Result<u64, &'static str> {
        let step = &plan.steps[0];
        let instruction = &step.instruction;
        let entry = self.enter(plan.pc, false);
        self.report_begin(block, 1, before);
        let begun = self.words as i64;
        let none = self.code.short(&[0xe3]);
        let accesses = &plan.accesses[step.reported.clone()];
        let first = self.words;
        for access in accesses {
            self.report_access(access, 0);
        }
        self.place(instruction.ip(), [None; 2]);
        let raw = &plan.bytes[step.at..step.at + instruction.len()];
        let prefixes = raw
            .iter()
            .take_while(|b| matches!(b, 0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf2 | 0xf3));
        let prefixes = prefixes.count();
        for byte in &raw[..prefixes] {
            if !matches!(byte, 0xf2 | 0xf3) {
                self.code.put(&[*byte]);
            }
        }
        self.code.put(&raw[prefixes..]);
        self.report_values(accesses, first);
        self.advance();
        self.code.lea(RCX, Address { base: Some(RCX), displacement: -1, ..Address::default() });
        use iced_x86::Mnemonic::*;
        let compares = matches!(
            instruction.mnemonic(),
            Cmpsb | Cmpsw | Cmpsd | Cmpsq | Scasb | Scasw | Scasd | Scasq
        );
        let differs = compares
            .then(|| self.code.short(&[if instruction.has_repne_prefix() { 0x74 } else { 0x75 }]));
        // Once more to see that nothing is left, as the emulator does: that counts as an
        // instruction too.
        self.code.jump(None, entry);
        self.code.land(none);
        self.code
            .lea(RING, Address { base: Some(RING), displacement: 8 * begun, ..Address::default() });
        if let Some(differs) = differs {
            self.code.land(differs);
        }
        self.go_to(instruction.next_ip());
        Ok(entry)
    }
}
