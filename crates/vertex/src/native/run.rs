//! Executes lowered programs.

use super::lower::{Action, Lowered, Place, Value};
use super::{NoObserver, ObservedArray, VertexAccess, VertexObserver};
use super::{ProgramResults, ReturnedValue};
use crate::graph::Graph;
use crate::syntax::{BinaryOperation, Direction, Reduction, UpdateMode};
use crate::VertexError;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering::Relaxed};

/// Vertices that a host thread takes at a time.
const CHUNK: u32 = 64;

struct Memory<'a> {
    graph: &'a Graph,
    globals: Vec<AtomicI64>,
    properties: Vec<Vec<AtomicI64>>,
    host_threads: u32,
    locals: usize,
}

/// One thread's registers.
struct Frame<'o, O> {
    locals: Vec<i64>,
    /// This thread's own sums of globals, with how they are made; empty outside of parallel loops.
    partials: Vec<Option<(Reduction, i64)>>,
    in_parallel: bool,
    observer: &'o mut O,
}

impl<O: VertexObserver> Frame<'_, O> {
    fn see(&mut self, array: ObservedArray, index: u64, access: VertexAccess) {
        if O::ACTIVE {
            self.observer.access(array, index, access);
        }
    }
}

pub(super) fn run<O: VertexObserver + Send>(
    lowered: &Lowered,
    graph: &Graph,
    host_threads: u32,
    observer: &mut O,
) -> Result<ProgramResults, VertexError> {
    let atomic = |values: &Vec<i64>| values.iter().map(|v| AtomicI64::new(*v)).collect::<Vec<_>>();
    let memory = Memory {
        graph,
        globals: atomic(&lowered.globals),
        properties: lowered.properties.iter().map(atomic).collect(),
        host_threads,
        locals: lowered.locals,
    };
    let mut frame = new_frame(&memory, false, observer);
    block(&lowered.body, &memory, &mut frame)?;
    let mut evaluate = |value: &Value| evaluate(value, &memory, &mut frame);
    let returned = lowered
        .results
        .iter()
        .map(|(name, value, below)| ReturnedValue {
            name: name.clone(),
            value: evaluate(value),
            denominator: below.as_ref().map(&mut evaluate),
        })
        .collect();
    let plain = |values: &Vec<AtomicI64>| values.iter().map(|v| v.load(Relaxed)).collect();
    Ok(ProgramResults {
        returned,
        globals: plain(&memory.globals),
        properties: memory.properties.iter().map(plain).collect(),
    })
}

fn new_frame<'o, O>(memory: &Memory, in_parallel: bool, observer: &'o mut O) -> Frame<'o, O> {
    let partials = vec![None; memory.globals.len()];
    Frame { locals: vec![0; memory.locals], partials, in_parallel, observer }
}

fn block<O: VertexObserver + Send>(
    actions: &[Action],
    memory: &Memory,
    frame: &mut Frame<O>,
) -> Result<(), VertexError> {
    actions.iter().try_for_each(|action| execute(action, memory, frame))
}

fn execute<O: VertexObserver + Send>(
    action: &Action,
    memory: &Memory,
    frame: &mut Frame<O>,
) -> Result<(), VertexError> {
    match action {
        Action::Set { place, value } => {
            let value = evaluate(value, memory, frame);
            match *place {
                Place::Local(local) => frame.locals[usize::from(local)] = value,
                place => {
                    see_place(place, VertexAccess::Store, frame);
                    cell(place, memory, frame).store(value, Relaxed);
                }
            }
        }
        Action::Update { mode, place, reduction, value } => {
            let value = evaluate(value, memory, frame);
            update(*mode, *place, *reduction, value, memory, frame);
        }
        Action::Fetch { local, place, reduction, value } => {
            let value = evaluate(value, memory, frame);
            let old = update(UpdateMode::Atomic, *place, *reduction, value, memory, frame);
            frame.locals[usize::from(*local)] = old;
        }
        Action::If { condition, then, otherwise } => {
            let chosen = if evaluate(condition, memory, frame) != 0 { then } else { otherwise };
            block(chosen, memory, frame)?;
        }
        Action::ParallelFor { vertex, body } => parallel(*vertex, body, memory, frame)?,
        Action::ForNeighbors { vertex, edge, of, direction, body } => {
            let of = frame.locals[usize::from(*of)] as u32;
            let Some(lists) = memory.graph.lists(*direction) else { return Ok(()) };
            for side in [0, 1] {
                let index = u64::from(of) + side;
                frame.see(ObservedArray::Offsets(*direction), index, VertexAccess::Load);
            }
            let start = lists.start(of);
            for (slot, neighbor) in lists.of(of).iter().enumerate() {
                let index = start + slot as u64;
                frame.see(ObservedArray::Neighbors(*direction), index, VertexAccess::Load);
                frame.locals[usize::from(*vertex)] = i64::from(*neighbor);
                if let Some(edge) = edge {
                    frame.see(ObservedArray::Weights(*direction), index, VertexAccess::Load);
                    frame.locals[usize::from(*edge)] = i64::from(lists.weights_of(of)[slot]);
                }
                block(body, memory, frame)?;
            }
        }
        Action::While { line, condition, limit, body } => {
            let limit = evaluate(limit, memory, frame);
            let mut rounds = 0;
            while evaluate(condition, memory, frame) != 0 {
                if rounds >= limit {
                    return Err(VertexError::Unbounded { line: *line, limit });
                }
                rounds += 1;
                block(body, memory, frame)?;
            }
        }
    }
    Ok(())
}

/// Runs a loop's body for every vertex, on all host threads where nobody observes.
fn parallel<O: VertexObserver + Send>(
    vertex: u16,
    body: &[Action],
    memory: &Memory,
    frame: &mut Frame<O>,
) -> Result<(), VertexError> {
    let count = memory.graph.vertices();
    let next = AtomicU32::new(0);
    let outer = &frame.locals;
    fn work<O: VertexObserver + Send>(
        vertex: u16,
        body: &[Action],
        memory: &Memory,
        next: &AtomicU32,
        mut frame: Frame<O>,
    ) -> Result<Vec<Option<(Reduction, i64)>>, VertexError> {
        let count = memory.graph.vertices();
        loop {
            let begin = next.fetch_add(CHUNK, Relaxed);
            if begin >= count {
                return Ok(frame.partials);
            }
            for number in begin..count.min(begin.saturating_add(CHUNK)) {
                frame.locals[usize::from(vertex)] = i64::from(number);
                if O::ACTIVE {
                    frame.observer.begin_thread(number);
                }
                block(body, memory, &mut frame)?;
            }
        }
    }
    let mut sums = Vec::new();
    if O::ACTIVE {
        frame.observer.synchronize();
    }
    if O::ACTIVE || memory.host_threads == 1 || count <= CHUNK {
        let mut inner = new_frame(memory, true, &mut *frame.observer);
        inner.locals.clone_from(outer);
        sums.push(work(vertex, body, memory, &next, inner)?);
    } else {
        let done = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..memory.host_threads)
                .map(|_| {
                    let (next, outer) = (&next, outer.clone());
                    scope.spawn(move || {
                        let mut observer = NoObserver;
                        let mut inner = new_frame(memory, true, &mut observer);
                        inner.locals = outer;
                        work(vertex, body, memory, next, inner)
                    })
                })
                .collect();
            workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect::<Vec<_>>()
        });
        for sum in done {
            sums.push(sum.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
    }
    if O::ACTIVE {
        frame.observer.synchronize();
    }
    for partials in sums {
        for (global, partial) in partials.into_iter().enumerate() {
            let Some((reduction, value)) = partial else { continue };
            let index = global as u64;
            frame.see(ObservedArray::Globals, index, VertexAccess::Load);
            frame.see(ObservedArray::Globals, index, VertexAccess::Store);
            apply(&memory.globals[global], reduction, value);
        }
    }
    Ok(())
}

fn cell<'m, O>(place: Place, memory: &'m Memory, frame: &Frame<O>) -> &'m AtomicI64 {
    match place {
        Place::Property { property, vertex } => {
            let number = frame.locals[usize::from(vertex)] as usize;
            &memory.properties[usize::from(property)][number]
        }
        Place::Local(global) | Place::Global(global) => &memory.globals[usize::from(global)],
    }
}

fn see_place<O: VertexObserver>(place: Place, access: VertexAccess, frame: &mut Frame<O>) {
    match place {
        Place::Local(_) => {}
        Place::Global(global) => frame.see(ObservedArray::Globals, u64::from(global), access),
        Place::Property { property, vertex } => {
            let number = frame.locals[usize::from(vertex)] as u64;
            frame.see(ObservedArray::Property(property), number, access);
        }
    }
}

/// Updates a value; what it was before.
fn update<O: VertexObserver>(
    mode: UpdateMode,
    place: Place,
    reduction: Reduction,
    value: i64,
    memory: &Memory,
    frame: &mut Frame<O>,
) -> i64 {
    match place {
        Place::Local(local) => {
            let slot = &mut frame.locals[usize::from(local)];
            std::mem::replace(slot, reduction.apply(*slot, value))
        }
        Place::Global(global) if mode == UpdateMode::Plain && frame.in_parallel => {
            let partial = &mut frame.partials[usize::from(global)];
            let old = partial.map_or(reduction.identity(), |(_, old)| old);
            *partial = Some((reduction, reduction.apply(old, value)));
            old
        }
        place => {
            see_place(place, VertexAccess::Load, frame);
            see_place(place, VertexAccess::Store, frame);
            let cell = cell(place, memory, frame);
            if mode == UpdateMode::Plain {
                let old = cell.load(Relaxed);
                cell.store(reduction.apply(old, value), Relaxed);
                return old;
            }
            apply(cell, reduction, value)
        }
    }
}

fn apply(cell: &AtomicI64, reduction: Reduction, value: i64) -> i64 {
    match reduction {
        Reduction::Add => cell.fetch_add(value, Relaxed),
        Reduction::Minimum => cell.fetch_min(value, Relaxed),
        Reduction::Maximum => cell.fetch_max(value, Relaxed),
        Reduction::BitAnd => cell.fetch_and(value, Relaxed),
        Reduction::BitOr => cell.fetch_or(value, Relaxed),
        Reduction::BitXor => cell.fetch_xor(value, Relaxed),
    }
}

fn evaluate<O: VertexObserver>(value: &Value, memory: &Memory, frame: &mut Frame<O>) -> i64 {
    match value {
        Value::Constant(value) => *value,
        Value::Local(local) => frame.locals[usize::from(*local)],
        Value::Global(global) => {
            frame.see(ObservedArray::Globals, u64::from(*global), VertexAccess::Load);
            memory.globals[usize::from(*global)].load(Relaxed)
        }
        Value::Property { property, vertex } => {
            let place = Place::Property { property: *property, vertex: *vertex };
            see_place(place, VertexAccess::Load, frame);
            cell(place, memory, frame).load(Relaxed)
        }
        Value::Degree { vertex, direction } => {
            let number = frame.locals[usize::from(*vertex)] as u32;
            for side in [0, 1] {
                let index = u64::from(number) + side;
                frame.see(ObservedArray::Offsets(*direction), index, VertexAccess::Load);
            }
            memory.graph.lists(*direction).map_or(0, |lists| lists.of(number).len() as i64)
        }
        Value::HasEdge { from, to } => {
            let [from, to] = [from, to].map(|local| frame.locals[usize::from(*local)] as u32);
            i64::from(has_edge(from, to, memory, frame))
        }
        Value::Negate(a) => evaluate(a, memory, frame).wrapping_neg(),
        Value::Not(a) => i64::from(evaluate(a, memory, frame) == 0),
        Value::Binary { operation: BinaryOperation::And, a, b } => {
            i64::from(evaluate(a, memory, frame) != 0 && evaluate(b, memory, frame) != 0)
        }
        Value::Binary { operation: BinaryOperation::Or, a, b } => {
            i64::from(evaluate(a, memory, frame) != 0 || evaluate(b, memory, frame) != 0)
        }
        Value::Binary { operation, a, b } => {
            let a = evaluate(a, memory, frame);
            operation.apply(a, evaluate(b, memory, frame))
        }
    }
}

/// A binary search of which every step is seen.
fn has_edge<O: VertexObserver>(from: u32, to: u32, memory: &Memory, frame: &mut Frame<O>) -> bool {
    if !O::ACTIVE {
        return memory.graph.has_edge(from, to);
    }
    let Some(lists) = memory.graph.lists(Direction::Out) else { return false };
    for side in [0, 1] {
        let index = u64::from(from) + side;
        frame.see(ObservedArray::Offsets(Direction::Out), index, VertexAccess::Load);
    }
    let (list, start) = (lists.of(from), lists.start(from));
    let (mut low, mut high) = (0, list.len());
    while low < high {
        let middle = (low + high) / 2;
        let index = start + middle as u64;
        frame.see(ObservedArray::Neighbors(Direction::Out), index, VertexAccess::Load);
        match list[middle].cmp(&to) {
            std::cmp::Ordering::Equal => return true,
            std::cmp::Ordering::Less => low = middle + 1,
            std::cmp::Ordering::Greater => high = middle,
        }
    }
    false
}
