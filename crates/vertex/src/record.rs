//! Recordings of vertex programs for `terrace sim`: every access of native execution.
//!
//! Arrays lie behind one another, each from a page's begin: globals and properties in words of 8
//! bytes, offsets of lists in 8, neighbours and weights in 4. Threads take blocks of vertices in
//! turn and wait for each other at both ends of a parallel loop.

use crate::graph::{Graph, Orientation};
use crate::native::{
    observe, vertex_properties, ObservedArray, ParameterValues, ProgramResults, VertexAccess,
    VertexObserver,
};
use crate::syntax::{DeclarationKind, Direction, VertexProgram};
use crate::VertexError;
use std::io::Write;
use terrace_trace::{Access, EventKind, TraceError, TraceEvent, TraceHeader, TraceWriter};

/// Where the first array begins.
const FIRST_BYTE: u64 = 1 << 30;
/// Arrays begin at multiples of a page, bytes.
const PAGE_BYTES: u64 = 4096;
/// Vertices that a thread takes at a time: a cache line of a property, so that threads do not share
/// lines. Half of it shares them; double makes threads of small graphs idle.
const BLOCK: u32 = 8;
/// Instructions for each access. Code for nodelets has six in a turn of a loop over neighbours that
/// makes two accesses: a branch, two loads, an operation, an addition and a jump.
const INSTRUCTIONS: u32 = 3;
/// Threads at most.
pub const MOST_RECORDED_THREADS: u32 = 256;

/// Why a program is not recorded.
#[derive(Debug, thiserror::Error)]
pub enum VertexRecordError {
    /// The program does not run.
    #[error(transparent)]
    Program(#[from] VertexError),
    /// The recording cannot be written.
    #[error(transparent)]
    Write(#[from] TraceError),
}

/// An array of the recorded program.
#[derive(Debug, Clone, Copy)]
struct RecordedArray {
    array: ObservedArray,
    start: u64,
    bytes: u32,
}

/// Writes accesses as they come.
struct AccessRecorder<W: Write> {
    writer: TraceWriter<W>,
    arrays: Vec<RecordedArray>,
    orientation: Orientation,
    threads: u32,
    thread: u32,
    /// The vertex of the current thread; none outside of parallel loops.
    vertex: Option<u64>,
    /// Loads since one of a neighbour's number, itself included; 0: none yet.
    since_neighbor: u8,
    /// Where the last element of a list was.
    last_element: Option<u64>,
    /// Whether a list's begin was loaded since.
    at_begin: bool,
    failure: Option<TraceError>,
}

/// Runs a program natively and writes a recording of what `threads` threads would access, 1 to
/// [`MOST_RECORDED_THREADS`]. `command` goes into its header.
///
/// # Errors
/// [`VertexRecordError`]: what [`crate::native::run`] finds, or the writer's error.
pub fn record<W: Write + Send>(
    program: &VertexProgram,
    graph: &Graph,
    parameters: &ParameterValues,
    threads: u32,
    command: &[String],
    out: W,
) -> Result<(ProgramResults, W), VertexRecordError> {
    let header = TraceHeader {
        source: "vertex".to_owned(),
        command: command.to_vec(),
        dependence: true,
        notes: vec![format!(
            "native execution of a vertex program, {INSTRUCTIONS} instructions for each access; \
             blocks of {BLOCK} vertices go to the threads in turn"
        )],
        ..TraceHeader::default()
    };
    let mut writer = TraceWriter::new(out, &header)?;
    let arrays = place(program, graph, &mut writer)?;
    let mut recorder = AccessRecorder {
        writer,
        arrays,
        orientation: graph.orientation(),
        threads: threads.clamp(1, MOST_RECORDED_THREADS),
        thread: 0,
        vertex: None,
        since_neighbor: 0,
        last_element: None,
        at_begin: false,
        failure: None,
    };
    let results = observe(program, graph, parameters, &mut recorder)?;
    match recorder.failure {
        Some(error) => Err(error.into()),
        None => Ok((results, recorder.writer.finish()?)),
    }
}

/// Gives every array its place, and writes its name.
fn place<W: Write>(
    program: &VertexProgram,
    graph: &Graph,
    writer: &mut TraceWriter<W>,
) -> Result<Vec<RecordedArray>, TraceError> {
    let vertices = u64::from(graph.vertices());
    let globals = program.declared(DeclarationKind::Global).count() as u64;
    let mut sizes = vec![(ObservedArray::Globals, "globals".to_owned(), globals, 8)];
    for (index, declaration) in vertex_properties(program).enumerate() {
        let array = ObservedArray::Property(index as u16);
        sizes.push((array, declaration.name.clone(), vertices, 8));
    }
    for (direction, name) in [(Direction::Out, "out"), (Direction::In, "in")] {
        let undirected = graph.orientation() == Orientation::Undirected;
        let Some(lists) = graph.lists(direction) else { continue };
        if direction == Direction::In && undirected {
            continue;
        }
        let edges = lists.start(graph.vertices());
        let offsets = ObservedArray::Offsets(direction);
        sizes.push((offsets, format!("{name} offsets"), vertices + 1, 8));
        let neighbors = ObservedArray::Neighbors(direction);
        sizes.push((neighbors, format!("{name} neighbors"), edges, 4));
        sizes.push((ObservedArray::Weights(direction), format!("{name} weights"), edges, 4));
    }
    let mut start = FIRST_BYTE;
    let mut arrays = Vec::new();
    for (array, name, elements, bytes) in sizes {
        let length = (elements * u64::from(bytes)).next_multiple_of(PAGE_BYTES).max(PAGE_BYTES);
        let what = EventKind::Object { start, length, name };
        writer.event(&TraceEvent { time: 0, process: 0, thread: 0, what })?;
        arrays.push(RecordedArray { array, start, bytes });
        start += length;
    }
    Ok(arrays)
}

impl<W: Write> AccessRecorder<W> {
    /// How many loads ago the value was loaded that this address comes from; 0: from a counter.
    fn dependence(&self, array: ObservedArray, index: u64) -> u8 {
        match array {
            ObservedArray::Globals => 0,
            ObservedArray::Property(_) => match self.vertex {
                Some(own) if own == index => 0,
                _ => self.since_neighbor,
            },
            ObservedArray::Offsets(_) => match self.vertex {
                Some(own) if index == own || index == own + 1 => 0,
                _ => self.since_neighbor,
            },
            // The first one comes from the list's begin, loaded before its end; later ones from
            // a counter, but for the steps of a search.
            ObservedArray::Neighbors(_) if self.at_begin => 2,
            ObservedArray::Neighbors(_) | ObservedArray::Weights(_) => match self.last_element {
                Some(last) if index == last || index == last + 1 => 0,
                _ => 1,
            },
        }
    }

    fn note_load(&mut self, array: ObservedArray, index: u64) {
        match array {
            ObservedArray::Neighbors(_) => {
                self.since_neighbor = 1;
                self.last_element = Some(index);
                self.at_begin = false;
                return;
            }
            ObservedArray::Weights(_) => self.last_element = Some(index),
            ObservedArray::Offsets(_) => self.at_begin = true,
            ObservedArray::Globals | ObservedArray::Property(_) => {}
        }
        if self.since_neighbor > 0 {
            self.since_neighbor = self.since_neighbor.saturating_add(1);
        }
    }
}

impl<W: Write> VertexObserver for AccessRecorder<W> {
    fn access(&mut self, array: ObservedArray, index: u64, access: VertexAccess) {
        let array = match (array, self.orientation) {
            (ObservedArray::Offsets(_), Orientation::Undirected) => {
                ObservedArray::Offsets(Direction::Out)
            }
            (ObservedArray::Neighbors(_), Orientation::Undirected) => {
                ObservedArray::Neighbors(Direction::Out)
            }
            (ObservedArray::Weights(_), Orientation::Undirected) => {
                ObservedArray::Weights(Direction::Out)
            }
            (array, _) => array,
        };
        let Some(place) = self.arrays.iter().find(|place| place.array == array) else { return };
        let store = access == VertexAccess::Store;
        let access = Access {
            address: place.start + index * u64::from(place.bytes),
            size: place.bytes,
            store,
            depends: self.dependence(array, index),
            gap: INSTRUCTIONS,
            pc: 0,
        };
        if let Err(error) = self.writer.access(0, self.thread, &access) {
            self.failure.get_or_insert(error);
        }
        if !store {
            self.note_load(array, index);
        }
    }

    fn begin_thread(&mut self, vertex: u32) {
        self.thread = vertex / BLOCK % self.threads;
        self.vertex = Some(u64::from(vertex));
        self.since_neighbor = 0;
        self.last_element = None;
        self.at_begin = false;
    }

    fn synchronize(&mut self) {
        let latest = (0..self.threads).map(|thread| self.writer.time(thread)).max().unwrap_or(0);
        for thread in 0..self.threads {
            let ticks = latest - self.writer.time(thread);
            if let Err(error) = self.writer.advance(0, thread, ticks) {
                self.failure.get_or_insert(error);
            }
        }
        self.thread = 0;
        self.vertex = None;
    }
}
