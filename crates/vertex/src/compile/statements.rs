//! Code generation for statements.

use super::{Binding, Generator};
use crate::syntax::{
    AssignmentTarget, DeclarationKind, Direction, Expression, Reduction, SpawnPlace, Statement,
    StatementKind, UpdateMode,
};
use crate::VertexError;
use terrace_migratory::code::{
    AluOperation, CodeAddress, Register, SpawnTarget, ThreadletInstruction, UpdateOperation,
};
use terrace_migratory::memory::ArrayId;

type Generated<T> = Result<T, VertexError>;

const NOWHERE: CodeAddress = CodeAddress(0);

fn update_operation(reduction: Reduction) -> UpdateOperation {
    match reduction {
        Reduction::Add => UpdateOperation::Add,
        Reduction::Minimum => UpdateOperation::Minimum,
        Reduction::Maximum => UpdateOperation::Maximum,
        Reduction::BitAnd => UpdateOperation::And,
        Reduction::BitOr => UpdateOperation::Or,
        Reduction::BitXor => UpdateOperation::Xor,
    }
}

fn alu_operation(reduction: Reduction) -> AluOperation {
    match reduction {
        Reduction::Add => AluOperation::Add,
        Reduction::Minimum => AluOperation::Minimum,
        Reduction::Maximum => AluOperation::Maximum,
        Reduction::BitAnd => AluOperation::And,
        Reduction::BitOr => AluOperation::Or,
        Reduction::BitXor => AluOperation::Xor,
    }
}

impl<'a> Generator<'a> {
    pub(super) fn program(&mut self) -> Generated<()> {
        let program = self.program;
        self.block(&program.body)?;
        self.line = 0;
        self.emit(ThreadletInstruction::End);
        Ok(())
    }

    fn block(&mut self, block: &'a [Statement]) -> Generated<()> {
        let (outer, registers) = (self.scope.clone(), self.next_register);
        for statement in block {
            self.line = statement.line;
            self.statement(statement)?;
        }
        self.scope = outer;
        self.next_register = registers;
        Ok(())
    }

    fn statement(&mut self, statement: &'a Statement) -> Generated<()> {
        let needed: Vec<&str> =
            statement.expressions().into_iter().flat_map(|e| self.records_of(e)).collect();
        self.find_records(&needed)?;
        if let Some(AssignmentTarget::Property { of, .. }) = statement.target() {
            self.find_records(&[of])?;
        }
        if let StatementKind::ForNeighbors { of, .. } = &statement.kind {
            self.find_records(&[of])?;
        }
        // Temporaries use registers above those of variables, which are freed after the statement.
        let before = self.next_register;
        match &statement.kind {
            StatementKind::Comment(_) => {}
            StatementKind::Let { name, value } => {
                let d = self.register()?;
                let a = self.value(value)?;
                self.emit(ThreadletInstruction::Copy { d, a });
                self.scope.push((name, Binding::Local(d)));
                self.next_register = d.0 + 1;
                return Ok(());
            }
            StatementKind::Fetch { name, target, reduction, value } => {
                let d = self.register()?;
                let value = self.value(value)?;
                let (array, index) = self.word(target)?;
                let operation = update_operation(*reduction);
                self.emit(ThreadletInstruction::Atomic { operation, d, array, index, value });
                self.scope.push((name, Binding::Local(d)));
                self.next_register = d.0 + 1;
                return Ok(());
            }
            StatementKind::Assign { target, value } => self.assign(target, value)?,
            StatementKind::Update { mode, target, reduction, value } => {
                self.update(*mode, target, *reduction, value)?;
            }
            StatementKind::If { condition, then, otherwise } => {
                let skips = self.skip_unless(condition)?;
                self.block(then)?;
                if otherwise.is_empty() {
                    self.land(skips);
                } else {
                    let over = self.emit(ThreadletInstruction::Jump { to: NOWHERE });
                    self.land(skips);
                    self.block(otherwise)?;
                    self.land(vec![over]);
                }
            }
            StatementKind::ForNeighbors { vertex, edge, of, direction, body } => {
                self.neighbors(vertex, edge.as_deref(), of, *direction, body)?;
            }
            StatementKind::ParallelFor { vertex, spawn, body } => {
                self.parallel(statement, vertex, *spawn, body)?;
            }
            StatementKind::While { condition, limit, body } => {
                self.repeat(statement.line, condition, limit, body)?;
            }
        }
        self.next_register = before;
        Ok(())
    }

    /// The array that holds a global or property, and the register with its index there.
    fn word(&mut self, target: &AssignmentTarget) -> Generated<(ArrayId, Register)> {
        match target {
            AssignmentTarget::Property { of, property } => Ok(self.property(of, property)),
            AssignmentTarget::Name(name) => {
                let index = self.constant(self.global_index(name))?;
                Ok((self.arrays.globals, index))
            }
        }
    }

    fn assign(&mut self, target: &AssignmentTarget, value: &Expression) -> Generated<()> {
        if let AssignmentTarget::Name(name) = target {
            if let Some(Binding::Local(d)) = self.binding(name) {
                let a = self.value(value)?;
                self.emit(ThreadletInstruction::Copy { d, a });
                return Ok(());
            }
        }
        let value = self.value(value)?;
        let (array, index) = self.word(target)?;
        let operation = UpdateOperation::Store;
        if self.in_parallel {
            self.emit(ThreadletInstruction::Update { operation, array, index, value });
        } else {
            // Threads spawned later must see the value: an atomic operation stalls the thread until
            // the store is done.
            let d = self.register()?;
            self.emit(ThreadletInstruction::Atomic { operation, d, array, index, value });
        }
        Ok(())
    }

    fn update(
        &mut self,
        mode: UpdateMode,
        target: &AssignmentTarget,
        reduction: Reduction,
        value: &Expression,
    ) -> Generated<()> {
        if let AssignmentTarget::Name(name) = target {
            let own = match (self.binding(name), mode) {
                (Some(Binding::Local(d)), _) | (Some(Binding::Partial(d)), UpdateMode::Plain) => {
                    Some(d)
                }
                _ => None,
            };
            if let Some(d) = own {
                let b = self.value(value)?;
                let operation = alu_operation(reduction);
                self.emit(ThreadletInstruction::Alu { operation, d, a: d, b });
                return Ok(());
            }
        }
        let value = self.value(value)?;
        let (array, index) = self.word(target)?;
        match mode {
            UpdateMode::Remote if self.in_parallel => {
                let operation = update_operation(reduction);
                self.emit(ThreadletInstruction::Update { operation, array, index, value });
            }
            UpdateMode::Plain if self.in_parallel => {
                let d = self.load(array, index)?;
                let operation = alu_operation(reduction);
                self.emit(ThreadletInstruction::Alu { operation, d, a: d, b: value });
                let operation = UpdateOperation::Store;
                self.emit(ThreadletInstruction::Update { operation, array, index, value: d });
            }
            _ => {
                let (operation, d) = (update_operation(reduction), self.register()?);
                self.emit(ThreadletInstruction::Atomic { operation, d, array, index, value });
            }
        }
        Ok(())
    }

    fn neighbors(
        &mut self,
        vertex: &'a str,
        edge: Option<&'a str>,
        of: &str,
        direction: Direction,
        body: &'a [Statement],
    ) -> Generated<()> {
        let lists = self.arrays.lists(direction);
        let record = self.record(of);
        let next = self.load(lists.starts, record)?;
        let end = self.load(lists.degrees, record)?;
        self.emit(ThreadletInstruction::Alu {
            operation: AluOperation::Add,
            d: end,
            a: end,
            b: next,
        });
        let line = self.line;
        let again = self.code.end();
        let (operation, a, b) = (AluOperation::LessOrEqual, end, next);
        let done = self.emit(ThreadletInstruction::Branch { operation, a, b, to: NOWHERE });
        let number = self.load(lists.neighbors, next)?;
        let outer = self.scope.len();
        let record = self.arrays.records.is_none().then_some(number);
        self.scope.push((vertex, Binding::Vertex { number, record }));
        if let (Some(edge), Some(weights)) = (edge, lists.weights) {
            let weight = self.load(weights, next)?;
            self.scope.push((edge, Binding::Edge(weight)));
        }
        self.block(body)?;
        self.scope.truncate(outer);
        self.line = line;
        let operation = AluOperation::Add;
        self.emit(ThreadletInstruction::AluConstant { operation, d: next, a: next, value: 1 });
        self.emit(ThreadletInstruction::Jump { to: again });
        self.land(vec![done]);
        Ok(())
    }

    fn repeat(
        &mut self,
        line: u32,
        condition: &Expression,
        limit: &Expression,
        body: &'a [Statement],
    ) -> Generated<()> {
        let limit_value = self.value(limit)?;
        let limit = self.register()?;
        self.emit(ThreadletInstruction::Copy { d: limit, a: limit_value });
        let rounds = self.constant(0)?;
        let again = self.code.end();
        let done = self.skip_unless(condition)?;
        let (operation, a, b) = (AluOperation::Less, rounds, limit);
        let within = self.emit(ThreadletInstruction::Branch { operation, a, b, to: NOWHERE });
        let flag = self.arrays.global_names.len() as i64;
        let before = self.next_register;
        for (index, value) in [(flag, None), (flag + 1, Some(limit))] {
            let value = match value {
                Some(value) => value,
                None => self.constant(i64::from(line.max(1)))?,
            };
            let (index, d) = (self.constant(index)?, self.register()?);
            let (operation, array) = (UpdateOperation::Store, self.arrays.globals);
            self.emit(ThreadletInstruction::Atomic { operation, d, array, index, value });
        }
        self.next_register = before;
        self.emit(ThreadletInstruction::End);
        self.land(vec![within]);
        let operation = AluOperation::Add;
        self.emit(ThreadletInstruction::AluConstant { operation, d: rounds, a: rounds, value: 1 });
        self.block(body)?;
        self.line = line;
        self.emit(ThreadletInstruction::Jump { to: again });
        self.land(done);
        Ok(())
    }

    fn parallel(
        &mut self,
        statement: &'a Statement,
        vertex: &'a str,
        spawn: SpawnPlace,
        body: &'a [Statement],
    ) -> Generated<()> {
        let outer = self.scope.len();
        let globals = self.globals_in(statement);
        for (name, summed) in &globals {
            if summed.is_none() {
                let index = self.constant(self.global_index(name))?;
                self.emit(ThreadletInstruction::Load {
                    d: index,
                    array: self.arrays.globals,
                    index,
                });
                self.scope.push((name, Binding::Passed(index)));
            }
        }
        let number = self.constant(0)?;
        let spawns = match spawn {
            SpawnPlace::Here => {
                let limit = self.constant(self.counts.0)?;
                let spawn = self.spawn_loop(number, limit, 1, None, SpawnTarget::Here);
                vec![spawn]
            }
            SpawnPlace::AtData => self.spawn_at_data(number)?,
        };
        let over = self.emit(ThreadletInstruction::Jump { to: NOWHERE });
        self.land(spawns);
        self.body(statement.line, vertex, number, &globals, body)?;
        self.land(vec![over]);
        self.scope.truncate(outer);
        Ok(())
    }

    /// `while number < limit { spawn; number += step }`, then a sync. Returns the address of the
    /// spawn, whose entry the caller must set. `find`: an array whose element `number` is loaded
    /// before each spawn, and the register for it.
    fn spawn_loop(
        &mut self,
        number: Register,
        limit: Register,
        step: i32,
        find: Option<(ArrayId, Register)>,
        target: SpawnTarget,
    ) -> CodeAddress {
        let again = self.code.end();
        let (operation, a, b) = (AluOperation::LessOrEqual, limit, number);
        let done = self.emit(ThreadletInstruction::Branch { operation, a, b, to: NOWHERE });
        if let Some((array, d)) = find {
            self.emit(ThreadletInstruction::Load { d, array, index: number });
        }
        let spawn = self.emit(ThreadletInstruction::Spawn { entry: NOWHERE, target });
        let operation = AluOperation::Add;
        self.emit(ThreadletInstruction::AluConstant {
            operation,
            d: number,
            a: number,
            value: step,
        });
        self.emit(ThreadletInstruction::Jump { to: again });
        self.land(vec![done]);
        self.emit(ThreadletInstruction::Sync);
        spawn
    }

    /// Spawns a thread on each nodelet, which spawns the threads of the vertices stored there.
    fn spawn_at_data(&mut self, number: Register) -> Generated<Vec<CodeAddress>> {
        let limit = self.constant(i64::from(self.nodelets))?;
        let far = self.spawn_loop(number, limit, 1, None, SpawnTarget::Nodelet(number));
        let over = self.emit(ThreadletInstruction::Jump { to: NOWHERE });
        self.land(vec![far]);
        self.emit(ThreadletInstruction::Constant { d: limit, value: self.counts.0 });
        let step = self.nodelets as i32;
        let near = match self.arrays.numbers {
            None => self.spawn_loop(number, limit, step, None, SpawnTarget::Here),
            // A vertex is on the nodelet of its record, so the loop runs over record indexes.
            Some(numbers) => {
                let record = self.register()?;
                self.emit(ThreadletInstruction::Copy { d: record, a: number });
                let find = Some((numbers, number));
                self.spawn_loop(record, limit, step, find, SpawnTarget::Here)
            }
        };
        self.emit(ThreadletInstruction::End);
        self.land(vec![over]);
        Ok(vec![near])
    }

    /// The code that each thread of a parallel loop runs.
    fn body(
        &mut self,
        line: u32,
        vertex: &'a str,
        number: Register,
        globals: &[(&'a str, Option<Reduction>)],
        body: &'a [Statement],
    ) -> Generated<()> {
        let record = self.arrays.records.is_none().then_some(number);
        self.scope.push((vertex, Binding::Vertex { number, record }));
        let mut partials = Vec::new();
        for (name, reduction) in globals {
            if let Some(reduction) = reduction {
                let partial = self.constant(reduction.identity())?;
                self.scope.push((name, Binding::Partial(partial)));
                partials.push((*name, *reduction, partial));
            }
        }
        self.in_parallel = true;
        self.block(body)?;
        self.in_parallel = false;
        self.line = line;
        for (name, reduction, partial) in partials {
            let before = self.next_register;
            let unchanged = self.constant(reduction.identity())?;
            let (operation, a, b) = (AluOperation::Equal, partial, unchanged);
            let skip = self.emit(ThreadletInstruction::Branch { operation, a, b, to: NOWHERE });
            let index = self.constant(self.global_index(name))?;
            let (operation, array) = (update_operation(reduction), self.arrays.globals);
            self.emit(ThreadletInstruction::Update { operation, array, index, value: partial });
            self.land(vec![skip]);
            self.next_register = before;
        }
        self.emit(ThreadletInstruction::End);
        Ok(())
    }

    /// Globals that a loop reads (`None`), and those that its threads reduce (`Some`).
    fn globals_in(&self, loop_statement: &'a Statement) -> Vec<(&'a str, Option<Reduction>)> {
        let mut globals: Vec<(&str, Option<Reduction>)> = Vec::new();
        let is_global = |name: &str| {
            self.program.declaration(name).map(|d| d.kind) == Some(DeclarationKind::Global)
        };
        loop_statement.visit(&mut |statement| {
            let mut note = |name: &'a str, reduction| {
                if is_global(name) && !globals.iter().any(|(known, _)| *known == name) {
                    globals.push((name, reduction));
                }
            };
            if let StatementKind::Update {
                mode: UpdateMode::Plain,
                target: AssignmentTarget::Name(name),
                reduction,
                ..
            } = &statement.kind
            {
                note(name, Some(*reduction));
            }
            for expression in statement.expressions() {
                for name in expression.names() {
                    note(name, None);
                }
            }
        });
        globals
    }
}
