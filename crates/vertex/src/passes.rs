//! Transformations that keep what a program computes and save migrations.
//!
//! Each looks at every place where it could apply, checks there whether it may, and says why where
//! it may not.

mod effects;
mod flip;
mod fusion;
mod hoist;
mod hybrid;
mod remote;
mod reorder;

use crate::graph::Graph;
use crate::syntax::{DeclarationKind, SpawnPlace, Statement, StatementKind, VertexProgram};
use crate::VertexError;

/// A transformation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pass {
    /// Parallel loops that follow one another become one (section 2.1 of the paper).
    Fusion,
    /// A loop over in-edges becomes one over out-edges, or the reverse (section 2.2).
    Flip,
    /// Atomics whose value nobody uses become remote updates (section 2.3).
    Remote,
    /// Property reads move out of loops over neighbours that do not change them.
    Hoist,
    /// Properties that nobody writes get a copy on every nodelet.
    Replicate,
    /// Threads begin on the nodelet of their vertex.
    SpawnAtData,
    /// Loops that push from active vertices pull in rounds where most edges are active.
    Hybrid,
    /// Vertices are laid out by degree.
    Reorder,
}

/// A place where a pass applied, or why it did not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassNote {
    /// The line of the text that was read.
    pub line: u32,
    /// What was done, or why it was not.
    pub what: String,
}

/// A transformed program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassOutcome {
    /// The program.
    pub program: VertexProgram,
    /// Where the pass applied.
    pub applied: Vec<PassNote>,
    /// Where it could not.
    pub refused: Vec<PassNote>,
}

/// What a pass must know besides the program.
#[derive(Debug, Clone, Copy)]
pub struct PassContext<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// Bytes that copies of a property may take on each nodelet.
    pub copy_bytes: u64,
}

impl Pass {
    /// All passes with their names.
    pub const ALL: [(&'static str, Self, &'static str); 8] = [
        ("fusion", Self::Fusion, "fuses parallel loops over vertices"),
        ("flip", Self::Flip, "turns loops over in-edges into loops over out-edges, or back"),
        ("remote", Self::Remote, "replaces atomics whose value is unused by remote updates"),
        ("hoist", Self::Hoist, "reads properties before loops that do not change them"),
        ("replicate", Self::Replicate, "copies properties that nobody writes to every nodelet"),
        ("spawn-at-data", Self::SpawnAtData, "begins threads on the nodelet of their vertex"),
        ("hybrid", Self::Hybrid, "pushes or pulls, by the number of active edges in each round"),
        ("reorder", Self::Reorder, "lays vertices out by degree"),
    ];

    /// A pass by its name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, ..)| *known == name).map(|(_, pass, _)| *pass)
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, pass, _)| *pass == self).map_or("", |(name, ..)| name)
    }

    /// Transforms a program wherever that is legal.
    ///
    /// # Errors
    /// [`VertexError::Refused`] where it is legal nowhere, [`VertexError::Unchanged`] where there
    /// is nothing to do; whatever [`crate::check::check`] finds.
    pub fn apply(
        self,
        program: &VertexProgram,
        context: PassContext,
    ) -> Result<PassOutcome, VertexError> {
        crate::check::check(program)?;
        let mut program = program.clone();
        program.strip_comments();
        let (mut applied, mut refused) = (Vec::new(), Vec::new());
        let notes = &mut Notes { applied: &mut applied, refused: &mut refused };
        match self {
            Self::Fusion => fusion::apply(&mut program, notes),
            Self::Flip => flip::apply(&mut program, context, notes),
            Self::Remote => remote::apply(&mut program, notes),
            Self::Hoist => hoist::apply(&mut program, notes),
            Self::Replicate => replicate(&mut program, context, notes),
            Self::SpawnAtData => spawn_at_data(&mut program, notes),
            Self::Hybrid => hybrid::apply(&mut program, context, notes),
            Self::Reorder => reorder::apply(&mut program, notes),
        }
        if applied.is_empty() {
            let pass = self.name();
            return Err(match refused.into_iter().next() {
                Some(note) => VertexError::Refused { pass, line: note.line, why: note.what },
                None => VertexError::Unchanged { pass },
            });
        }
        crate::check::check(&program)?;
        Ok(PassOutcome { program, applied, refused })
    }
}

/// What a pass did and did not.
struct Notes<'a> {
    applied: &'a mut Vec<PassNote>,
    refused: &'a mut Vec<PassNote>,
}

impl Notes<'_> {
    fn applied(&mut self, line: u32, what: impl Into<String>) {
        self.applied.push(PassNote { line, what: what.into() });
    }

    fn refused(&mut self, line: u32, why: impl Into<String>) {
        self.refused.push(PassNote { line, what: why.into() });
    }
}

fn spawn_at_data(program: &mut VertexProgram, notes: &mut Notes) {
    let mut lines = Vec::new();
    let change = &mut |statement: &mut Statement| {
        if let StatementKind::ParallelFor { spawn: spawn @ SpawnPlace::Here, .. } =
            &mut statement.kind
        {
            *spawn = SpawnPlace::AtData;
            lines.push(statement.line);
        }
    };
    program.body.iter_mut().for_each(|statement| statement.change(change));
    lines.into_iter().for_each(|line| notes.applied(line, "spawns threads at their vertices"));
}

fn replicate(program: &mut VertexProgram, context: PassContext, notes: &mut Notes) {
    let mut written: Vec<(String, u32)> = Vec::new();
    program.visit(&mut |statement| {
        if let Some(crate::syntax::AssignmentTarget::Property { property, .. }) = statement.target()
        {
            written.push((property.clone(), statement.line));
        }
    });
    let bytes = u64::from(context.graph.vertices()) * 8;
    let mut left = context.copy_bytes;
    for declaration in &mut program.declarations {
        if declaration.kind != DeclarationKind::Vertex {
            continue;
        }
        let (name, line) = (&declaration.name, declaration.line);
        if let Some((_, at)) = written.iter().find(|(property, _)| property == name) {
            notes.refused(line, format!("{name} is written at line {at}"));
        } else if bytes > left {
            notes.refused(line, format!("copies of {name} take {bytes} bytes, {left} are left"));
        } else {
            left -= bytes;
            notes.applied(line, format!("{name} has a copy on every nodelet"));
            declaration.kind = DeclarationKind::Replicated;
        }
    }
}
