//! Arrays of a program and its graph on a machine.

use crate::graph::{Graph, NeighborLists};
use crate::layout::{DataLayout, EdgeLayout, VertexLayout};
use crate::native::{evaluate_initial, vertex_properties, ParameterValues};
use crate::syntax::{DeclarationKind, Direction, StatementKind, VertexProgram};
use terrace_migratory::memory::{pointer, ArrayId, MemoryImage, MemoryMap, MemoryView};

/// A vertex property's array.
#[derive(Debug, Clone, Copy)]
pub(super) struct PropertyArray {
    pub array: ArrayId,
    /// Each nodelet has a copy, indexed by vertex number.
    pub replicated: bool,
}

/// Lists of neighbours.
#[derive(Debug, Clone, Copy)]
pub(super) struct ListArrays {
    pub starts: ArrayId,
    pub degrees: ArrayId,
    pub neighbors: ArrayId,
    pub weights: Option<ArrayId>,
}

/// The arrays of a compiled program.
#[derive(Debug, Clone)]
pub struct GraphArrays {
    pub(super) globals: ArrayId,
    pub(super) global_names: Vec<String>,
    pub(super) property_names: Vec<String>,
    pub(super) properties: Vec<PropertyArray>,
    /// Where vertices lie behind pointers: the record of each; else empty.
    pub(super) record_of: Vec<u32>,
    pub(super) records: Option<ArrayId>,
    pub(super) numbers: Option<ArrayId>,
    pub(super) out: ListArrays,
    pub(super) inverse: Option<ListArrays>,
}

impl GraphArrays {
    pub(super) fn lists(&self, direction: Direction) -> ListArrays {
        match direction {
            Direction::Out => self.out,
            Direction::In => self.inverse.unwrap_or(self.out),
        }
    }
}

/// Places and fills all arrays. `laid_out[v]` is the number in `graph` of the vertex that the
/// program knows as `v`.
pub(super) fn place(
    program: &VertexProgram,
    graph: &Graph,
    laid_out: &[u32],
    parameters: &ParameterValues,
    layout: DataLayout,
    nodelets: u32,
) -> (MemoryMap, MemoryImage, GraphArrays) {
    let vertices = u64::from(graph.vertices());
    let mut map = MemoryMap::new(nodelets);
    let globals: Vec<_> = program.declared(DeclarationKind::Global).collect();
    // Two more: the line and the limit of a loop that reached it.
    let home = MemoryView::Local { nodelet: 0 };
    let global_array = map.add("globals", home, globals.len() as u64 + 2);
    let properties: Vec<PropertyArray> = vertex_properties(program)
        .map(|d| {
            let replicated = d.kind == DeclarationKind::Replicated;
            let view = if replicated { MemoryView::Replicated } else { MemoryView::Striped };
            PropertyArray { array: map.add(&d.name, view, vertices), replicated }
        })
        .collect();
    let record_of = match layout.vertices {
        VertexLayout::Striped => Vec::new(),
        VertexLayout::Pointers => shuffle(graph.vertices()),
    };
    let behind_pointers = layout.vertices == VertexLayout::Pointers;
    let mut add_index = |name: &str| map.add(name, MemoryView::Striped, vertices);
    let records = behind_pointers.then(|| add_index("records"));
    let numbers = behind_pointers.then(|| add_index("numbers"));
    let weighted = uses_weights(program);
    let mut lists = Vec::new();
    let own_inverse = graph
        .lists(Direction::In)
        .filter(|_| graph.orientation() == crate::graph::Orientation::Directed);
    for (name, of) in [("out", graph.lists(Direction::Out)), ("in", own_inverse)] {
        if let Some(of) = of {
            let placed = place_lists(&mut map, graph, of, name, layout, &record_of, weighted);
            lists.push((of, placed));
        }
    }
    let mut memory = MemoryImage::new(&map);
    for (index, declaration) in globals.iter().enumerate() {
        let value = evaluate_initial(&declaration.initial, graph, parameters, 0);
        memory.set(&map, global_array, index as i64, value);
    }
    let record = |vertex: usize| record_of.get(vertex).map_or(vertex, |record| *record as usize);
    for (declaration, property) in vertex_properties(program).zip(&properties) {
        for (own, vertex) in laid_out.iter().enumerate() {
            let vertex = *vertex as usize;
            let value = evaluate_initial(&declaration.initial, graph, parameters, own as i64);
            let index = if property.replicated { vertex } else { record(vertex) };
            memory.set(&map, property.array, index as i64, value);
        }
    }
    for (vertex, record) in record_of.iter().enumerate() {
        let (vertex, record) = (vertex as i64, i64::from(*record));
        records.iter().for_each(|array| memory.set(&map, *array, vertex, record));
        numbers.iter().for_each(|array| memory.set(&map, *array, record, vertex));
    }
    for (of, placed) in &lists {
        fill_lists(&map, &mut memory, graph, of, *placed, layout, &record_of);
    }
    let arrays = GraphArrays {
        globals: global_array,
        global_names: globals.iter().map(|d| d.name.clone()).collect(),
        property_names: vertex_properties(program).map(|d| d.name.clone()).collect(),
        properties,
        record_of,
        records,
        numbers,
        out: lists[0].1,
        inverse: lists.get(1).map(|(_, placed)| *placed),
    };
    (map, memory, arrays)
}

fn uses_weights(program: &VertexProgram) -> bool {
    let mut used = false;
    program.visit(&mut |statement| {
        used |= matches!(statement.kind, StatementKind::ForNeighbors { edge: Some(_), .. });
    });
    used
}

/// Words of each nodelet for lists that lie with their vertices.
fn part_lengths(
    graph: &Graph,
    lists: &NeighborLists,
    map: &MemoryMap,
    records: &[u32],
) -> Vec<u64> {
    let mut lengths = vec![0; map.nodelets() as usize];
    for vertex in 0..graph.vertices() {
        let record = records.get(vertex as usize).map_or(vertex, |record| *record);
        lengths[(record % map.nodelets()) as usize] += lists.of(vertex).len() as u64;
    }
    lengths
}

fn place_lists(
    map: &mut MemoryMap,
    graph: &Graph,
    lists: &NeighborLists,
    name: &str,
    layout: DataLayout,
    records: &[u32],
    weighted: bool,
) -> ListArrays {
    let vertices = u64::from(graph.vertices());
    let starts = map.add(&format!("{name} starts"), MemoryView::Striped, vertices);
    let degrees = map.add(&format!("{name} degrees"), MemoryView::Striped, vertices);
    let edges: u64 = (0..graph.vertices()).map(|v| lists.of(v).len() as u64).sum();
    let lengths = part_lengths(graph, lists, map, records);
    let mut add = |name: String| match layout.edges {
        EdgeLayout::WithVertex => map.add_parts(&name, lengths.clone()),
        EdgeLayout::Striped => map.add(&name, MemoryView::Striped, edges),
    };
    let neighbors = add(format!("{name} neighbors"));
    let weights = weighted.then(|| add(format!("{name} weights")));
    ListArrays { starts, degrees, neighbors, weights }
}

fn fill_lists(
    map: &MemoryMap,
    memory: &mut MemoryImage,
    graph: &Graph,
    lists: &NeighborLists,
    arrays: ListArrays,
    layout: DataLayout,
    records: &[u32],
) {
    let mut next = vec![0u64; map.nodelets() as usize];
    for vertex in 0..graph.vertices() {
        let record = records.get(vertex as usize).map_or(vertex, |record| *record);
        let degree = lists.of(vertex).len() as u64;
        let start = match layout.edges {
            EdgeLayout::Striped => lists.start(vertex) as i64,
            EdgeLayout::WithVertex => {
                let nodelet = record % map.nodelets();
                let next = &mut next[nodelet as usize];
                *next += degree;
                pointer(nodelet, *next - degree)
            }
        };
        memory.set(map, arrays.starts, i64::from(record), start);
        memory.set(map, arrays.degrees, i64::from(record), degree as i64);
        let edges = lists.of(vertex).iter().zip(lists.weights_of(vertex));
        for (slot, (neighbor, weight)) in edges.enumerate() {
            let index = start + slot as i64;
            memory.set(map, arrays.neighbors, index, i64::from(*neighbor));
            if let Some(weights) = arrays.weights {
                memory.set(map, weights, index, i64::from(*weight));
            }
        }
    }
}

/// A fixed permutation of so many numbers (Fisher and Yates, with Knuth's MMIX generator).
fn shuffle(count: u32) -> Vec<u32> {
    let mut numbers: Vec<u32> = (0..count).collect();
    let mut state = 1u64;
    for last in (1..numbers.len()).rev() {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let other = ((state >> 32) * (last as u64 + 1)) >> 32;
        numbers.swap(last, other as usize);
    }
    numbers
}
