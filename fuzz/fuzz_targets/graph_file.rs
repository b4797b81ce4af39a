//! Graph files: no bytes panic, in any form; what is read is a graph.
#![no_main]

use libfuzzer_sys::fuzz_target;
use terrace_vertex::graph::{InEdges, Orientation};
use terrace_vertex::graph_file::{read_graph, GraphFileFormat};

fuzz_target!(|data: &[u8]| {
    let Some((first, rest)) = data.split_first() else { return };
    let formats = [
        GraphFileFormat::EdgeList,
        GraphFileFormat::MatrixMarket,
        GraphFileFormat::Serialized,
        GraphFileFormat::SerializedWeighted,
    ];
    let format = formats[usize::from(*first) % formats.len()];
    if let Ok(graph) = read_graph("fuzz", rest, format, Orientation::Directed, InEdges::Kept) {
        assert!(graph.vertices() > 0);
    }
});
