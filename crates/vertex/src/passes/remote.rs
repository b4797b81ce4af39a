//! Remote updates in place of atomics whose value nobody uses.

use super::Notes;
use crate::syntax::{Statement, StatementKind, UpdateMode, VertexProgram};

pub(super) fn apply(program: &mut VertexProgram, notes: &mut Notes) {
    for statement in &mut program.body {
        statement.change(&mut |inner| {
            if let StatementKind::ParallelFor { body, .. } = &mut inner.kind {
                replace_in(body, notes);
            }
        });
    }
}

fn replace_in(block: &mut [Statement], notes: &mut Notes) {
    for index in 0..block.len() {
        let (before, after) = block.split_at_mut(index + 1);
        let statement = &mut before[index];
        match &mut statement.kind {
            StatementKind::Update { mode: mode @ UpdateMode::Atomic, .. } => {
                *mode = UpdateMode::Remote;
                notes.applied(statement.line, "the atomic is a remote update");
            }
            StatementKind::Fetch { name, target, reduction, value } => {
                if let Some(line) = first_use(name, after) {
                    notes.refused(statement.line, format!("its value is used at line {line}"));
                } else {
                    statement.kind = StatementKind::Update {
                        mode: UpdateMode::Remote,
                        target: target.clone(),
                        reduction: *reduction,
                        value: value.clone(),
                    };
                    notes.applied(statement.line, "the atomic is a remote update");
                }
            }
            _ => {}
        }
        for inner in statement.blocks_mut() {
            replace_in(inner, notes);
        }
    }
}

/// The line where a local is used, if it is.
fn first_use(name: &str, statements: &[Statement]) -> Option<u32> {
    let mut line = None;
    for statement in statements {
        statement.visit(&mut |inner| {
            let read = inner.expressions().iter().any(|e| e.names().contains(&name));
            let changed = matches!(inner.target(),
                    Some(crate::syntax::AssignmentTarget::Name(n)) if n == name);
            if (read || changed) && line.is_none() {
                line = Some(inner.line);
            }
        });
    }
    line
}
