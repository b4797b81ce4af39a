//! Code for values and conditions.

use super::{Binding, Generator};
use crate::syntax::{BinaryOperation, DeclarationKind, Expression, UnaryOperation, INFINITY};
use crate::VertexError;
use terrace_migratory::code::{
    AluOperation, CodeAddress, Register, ThreadletInstruction, REGISTERS,
};
use terrace_migratory::memory::ArrayId;

type Generated<T> = Result<T, VertexError>;

/// The machine's operation, and whether its operands change places.
fn alu(operation: BinaryOperation) -> (AluOperation, bool) {
    match operation {
        BinaryOperation::Add => (AluOperation::Add, false),
        BinaryOperation::Subtract => (AluOperation::Subtract, false),
        BinaryOperation::Multiply => (AluOperation::Multiply, false),
        BinaryOperation::Divide => (AluOperation::Divide, false),
        BinaryOperation::Remainder => (AluOperation::Remainder, false),
        BinaryOperation::BitAnd | BinaryOperation::And => (AluOperation::And, false),
        BinaryOperation::BitOr | BinaryOperation::Or => (AluOperation::Or, false),
        BinaryOperation::BitXor => (AluOperation::Xor, false),
        BinaryOperation::Minimum => (AluOperation::Minimum, false),
        BinaryOperation::Maximum => (AluOperation::Maximum, false),
        BinaryOperation::Equal => (AluOperation::Equal, false),
        BinaryOperation::NotEqual => (AluOperation::NotEqual, false),
        BinaryOperation::Less => (AluOperation::Less, false),
        BinaryOperation::LessOrEqual => (AluOperation::LessOrEqual, false),
        BinaryOperation::Greater => (AluOperation::Less, true),
        BinaryOperation::GreaterOrEqual => (AluOperation::LessOrEqual, true),
    }
}

/// The comparison that is true where `operation` is false.
fn negated(operation: BinaryOperation) -> Option<BinaryOperation> {
    Some(match operation {
        BinaryOperation::Equal => BinaryOperation::NotEqual,
        BinaryOperation::NotEqual => BinaryOperation::Equal,
        BinaryOperation::Less => BinaryOperation::GreaterOrEqual,
        BinaryOperation::LessOrEqual => BinaryOperation::Greater,
        BinaryOperation::Greater => BinaryOperation::LessOrEqual,
        BinaryOperation::GreaterOrEqual => BinaryOperation::Less,
        _ => return None,
    })
}

impl<'a> Generator<'a> {
    pub(super) fn emit(&mut self, instruction: ThreadletInstruction) -> CodeAddress {
        self.code.push(instruction, self.line)
    }

    pub(super) fn register(&mut self) -> Generated<Register> {
        if usize::from(self.next_register) >= REGISTERS {
            let what = format!(
                "the statement needs more than {REGISTERS} registers; split it, or use fewer locals"
            );
            return Err(VertexError::Meaning { line: self.line, what });
        }
        self.next_register += 1;
        Ok(Register(self.next_register - 1))
    }

    pub(super) fn constant(&mut self, value: i64) -> Generated<Register> {
        let d = self.register()?;
        self.emit(ThreadletInstruction::Constant { d, value });
        Ok(d)
    }

    pub(super) fn load(&mut self, array: ArrayId, index: Register) -> Generated<Register> {
        let d = self.register()?;
        self.emit(ThreadletInstruction::Load { d, array, index });
        Ok(d)
    }

    pub(super) fn binding(&self, name: &str) -> Option<Binding> {
        self.scope.iter().rev().find(|(known, _)| *known == name).map(|(_, binding)| *binding)
    }

    /// The register with a vertex's number.
    pub(super) fn number(&self, vertex: &str) -> Register {
        match self.binding(vertex) {
            Some(Binding::Vertex { number, .. }) => number,
            _ => Register(0),
        }
    }

    /// The register with a vertex's record; [`Self::find_records`] has found it.
    pub(super) fn record(&self, vertex: &str) -> Register {
        match self.binding(vertex) {
            Some(Binding::Vertex { record: Some(record), .. }) => record,
            _ => self.number(vertex),
        }
    }

    /// Loads the records that these vertices need and that are not known yet. They stay known to
    /// the end of the block.
    pub(super) fn find_records(&mut self, vertices: &[&str]) -> Generated<()> {
        let Some(records) = self.arrays.records else { return Ok(()) };
        for vertex in vertices {
            if let Some(Binding::Vertex { number, record: None }) = self.binding(vertex) {
                let record = self.load(records, number)?;
                let known = self.scope.iter_mut().rev().find(|(known, _)| known == vertex);
                if let Some((_, binding)) = known {
                    *binding = Binding::Vertex { number, record: Some(record) };
                }
            }
        }
        Ok(())
    }

    /// Vertices of which an expression needs the record.
    pub(super) fn records_of<'e>(&self, expression: &'e Expression) -> Vec<&'e str> {
        let mut vertices = Vec::new();
        match expression {
            Expression::Property { of, property } => {
                let kind = self.program.declaration(property).map(|d| d.kind);
                if kind == Some(DeclarationKind::Vertex) {
                    vertices.push(of.as_str());
                }
            }
            Expression::Degree { of, .. } => vertices.push(of),
            Expression::HasEdge { from, .. } => vertices.push(from),
            Expression::Unary { a, .. } => vertices.extend(self.records_of(a)),
            Expression::Binary { a, b, .. } => {
                vertices.extend(self.records_of(a));
                vertices.extend(self.records_of(b));
            }
            _ => {}
        }
        vertices
    }

    /// The array and the index of a vertex property.
    pub(super) fn property(&self, of: &str, property: &str) -> (ArrayId, Register) {
        let names = &self.arrays.property_names;
        let index = names.iter().position(|name| name == property).unwrap_or(0);
        let placed = self.arrays.properties[index];
        let index = if placed.replicated { self.number(of) } else { self.record(of) };
        (placed.array, index)
    }

    pub(super) fn global_index(&self, name: &str) -> i64 {
        self.arrays.global_names.iter().position(|known| known == name).unwrap_or(0) as i64
    }

    /// Code for a value; the register may be a variable's own and must not be changed.
    pub(super) fn value(&mut self, expression: &Expression) -> Generated<Register> {
        match expression {
            Expression::Integer(value) => self.constant(*value),
            Expression::Infinity => self.constant(INFINITY),
            Expression::VertexCount => self.constant(self.counts.0),
            Expression::EdgeCount => self.constant(self.counts.1),
            Expression::Name(name) => match self.binding(name) {
                Some(Binding::Vertex { number, .. }) => Ok(number),
                Some(
                    Binding::Local(register)
                    | Binding::Passed(register)
                    | Binding::Partial(register)
                    | Binding::Edge(register),
                ) => Ok(register),
                None => match self.parameters.iter().find(|(known, _)| known == name) {
                    Some((_, value)) => self.constant(*value),
                    None => {
                        let index = self.constant(self.global_index(name))?;
                        self.load(self.arrays.globals, index)
                    }
                },
            },
            Expression::Property { of, property } => {
                if let Some(Binding::Edge(weight)) = self.binding(of) {
                    return Ok(weight);
                }
                let (array, index) = self.property(of, property);
                self.load(array, index)
            }
            Expression::Degree { of, direction } => {
                let lists = self.arrays.lists(*direction);
                self.load(lists.degrees, self.record(of))
            }
            Expression::HasEdge { from, to } => self.has_edge(from, to),
            Expression::Unary { operation, a } => {
                let d = self.register()?;
                let a = self.value(a)?;
                match operation {
                    UnaryOperation::Negate => {
                        let operation = AluOperation::Multiply;
                        self.emit(ThreadletInstruction::AluConstant { operation, d, a, value: -1 });
                    }
                    UnaryOperation::Not => {
                        let operation = AluOperation::Equal;
                        self.emit(ThreadletInstruction::AluConstant { operation, d, a, value: 0 });
                    }
                }
                self.next_register = d.0 + 1;
                Ok(d)
            }
            Expression::Binary {
                operation: BinaryOperation::And | BinaryOperation::Or, ..
            } => self.truth(expression),
            Expression::Binary { operation, a, b } => self.binary(*operation, a, b),
        }
    }

    fn binary(
        &mut self,
        operation: BinaryOperation,
        a: &Expression,
        b: &Expression,
    ) -> Generated<Register> {
        let d = self.register()?;
        let (operation, swapped) = alu(operation);
        let left = self.value(a)?;
        match (b, swapped) {
            (Expression::Integer(value), false) if i32::try_from(*value).is_ok() => {
                let value = *value as i32;
                self.emit(ThreadletInstruction::AluConstant { operation, d, a: left, value });
            }
            _ => {
                let right = self.value(b)?;
                let (a, b) = if swapped { (right, left) } else { (left, right) };
                self.emit(ThreadletInstruction::Alu { operation, d, a, b });
            }
        }
        self.next_register = d.0 + 1;
        Ok(d)
    }

    /// 1 or 0, evaluated only as far as needed.
    fn truth(&mut self, expression: &Expression) -> Generated<Register> {
        let d = self.register()?;
        self.emit(ThreadletInstruction::Constant { d, value: 0 });
        let skips = self.skip_unless(expression)?;
        self.emit(ThreadletInstruction::Constant { d, value: 1 });
        self.land(skips);
        self.next_register = d.0 + 1;
        Ok(d)
    }

    /// Jumps that are taken where the condition is 0; they still need a target.
    pub(super) fn skip_unless(&mut self, condition: &Expression) -> Generated<Vec<CodeAddress>> {
        let before = self.next_register;
        let nowhere = CodeAddress(0);
        let skips = match condition {
            Expression::Binary { operation: BinaryOperation::And, a, b } => {
                let mut skips = self.skip_unless(a)?;
                skips.extend(self.skip_unless(b)?);
                skips
            }
            Expression::Binary { operation: BinaryOperation::Or, a, b } => {
                let first = self.skip_unless(a)?;
                let holds = self.emit(ThreadletInstruction::Jump { to: nowhere });
                self.land(first);
                let second = self.skip_unless(b)?;
                self.land(vec![holds]);
                second
            }
            Expression::Binary { operation, a, b } if negated(*operation).is_some() => {
                let (operation, swapped) = alu(negated(*operation).unwrap_or(*operation));
                let left = self.value(a)?;
                let right = self.value(b)?;
                let (a, b) = if swapped { (right, left) } else { (left, right) };
                vec![self.emit(ThreadletInstruction::Branch { operation, a, b, to: nowhere })]
            }
            _ => {
                let a = self.value(condition)?;
                vec![self.emit(ThreadletInstruction::BranchZero { a, to: nowhere })]
            }
        };
        self.next_register = before;
        Ok(skips)
    }

    /// Jumps go on at the next instruction.
    pub(super) fn land(&mut self, jumps: Vec<CodeAddress>) {
        let here = self.code.end();
        jumps.into_iter().for_each(|jump| self.code.set_target(jump, here));
    }

    /// A binary search of the out-neighbours of `from`.
    fn has_edge(&mut self, from: &str, to: &str) -> Generated<Register> {
        let lists = self.arrays.lists(crate::syntax::Direction::Out);
        let (record, to) = (self.record(from), self.number(to));
        let found = self.constant(0)?;
        let low = self.load(lists.starts, record)?;
        let high = self.load(lists.degrees, record)?;
        self.emit(ThreadletInstruction::Alu {
            operation: AluOperation::Add,
            d: high,
            a: high,
            b: low,
        });
        let (middle, neighbor) = (self.register()?, self.register()?);
        let nowhere = CodeAddress(0);
        let again = self.code.end();
        let empty = self.emit(ThreadletInstruction::Branch {
            operation: AluOperation::LessOrEqual,
            a: high,
            b: low,
            to: nowhere,
        });
        self.emit(ThreadletInstruction::Alu {
            operation: AluOperation::Add,
            d: middle,
            a: low,
            b: high,
        });
        let (d, a) = (middle, middle);
        self.emit(ThreadletInstruction::AluConstant {
            operation: AluOperation::Divide,
            d,
            a,
            value: 2,
        });
        self.emit(ThreadletInstruction::Load {
            d: neighbor,
            array: lists.neighbors,
            index: middle,
        });
        let (a, b) = (neighbor, to);
        let below = self.emit(ThreadletInstruction::Branch {
            operation: AluOperation::Less,
            a,
            b,
            to: nowhere,
        });
        let equal = self.emit(ThreadletInstruction::Branch {
            operation: AluOperation::Equal,
            a,
            b,
            to: nowhere,
        });
        self.emit(ThreadletInstruction::Copy { d: high, a: middle });
        self.emit(ThreadletInstruction::Jump { to: again });
        self.land(vec![below]);
        let (d, a) = (low, middle);
        self.emit(ThreadletInstruction::AluConstant {
            operation: AluOperation::Add,
            d,
            a,
            value: 1,
        });
        self.emit(ThreadletInstruction::Jump { to: again });
        self.land(vec![equal]);
        self.emit(ThreadletInstruction::Constant { d: found, value: 1 });
        self.land(vec![empty]);
        self.next_register = found.0 + 1;
        Ok(found)
    }
}
