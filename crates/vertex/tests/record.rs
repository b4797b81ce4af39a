//! Recordings hold every access, in threads that wait for each other.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::io::Cursor;
use terrace_trace::{Block, BlockKind, EventKind, TraceReader};
use terrace_vertex::generate::GraphRecipe;
use terrace_vertex::graph::Graph;
use terrace_vertex::native::{observe, run, ObservedArray, VertexAccess, VertexObserver};
use terrace_vertex::parse::parse;
use terrace_vertex::programs::shipped;
use terrace_vertex::record::record;

#[derive(Default)]
struct Counted(HashMap<ObservedArray, u64>, u64);

impl VertexObserver for Counted {
    fn access(&mut self, array: ObservedArray, _: u64, access: VertexAccess) {
        *self.0.entry(array).or_default() += 1;
        self.1 += u64::from(access == VertexAccess::Store);
    }
}

fn graph(text: &str) -> Graph {
    GraphRecipe::parse(text).unwrap().unwrap().draw().unwrap()
}

#[test]
fn a_recording_has_every_access_in_an_array_of_its_own() {
    let directed = "rmat:scale=6,edges=4,directed=yes";
    for (name, recipe) in [("bellman-ford-pull", directed), ("triangles", "rmat:scale=6")] {
        let (program, graph) = (parse(shipped(name).unwrap()).unwrap(), graph(recipe));
        let mut counted = Counted::default();
        observe(&program, &graph, &[], &mut counted).unwrap();
        let (results, bytes) = record(&program, &graph, &[], 3, &[], Vec::new()).unwrap();
        assert_eq!(results, run(&program, &graph, &[], 1).unwrap());
        let mut reader = TraceReader::open(Cursor::new(bytes)).unwrap();
        assert!(reader.header().dependence && reader.header().describe_missing().is_none());
        let (mut objects, mut accesses, mut threads) = (Vec::new(), Vec::new(), HashMap::new());
        let (mut block, mut stores, mut dependent) = (Block::new().unwrap(), 0, 0);
        while reader.next_block(&mut block).unwrap() {
            for event in block.events() {
                if let EventKind::Object { start, length, name } = &event.what {
                    objects.push((*start, *length, name.clone()));
                }
            }
            if block.info().kind == BlockKind::Accesses {
                accesses.extend_from_slice(block.addresses());
                stores += block.kinds().iter().filter(|kind| kind.is_store()).count() as u64;
                dependent += block.kinds().iter().filter(|kind| kind.depends() > 0).count();
                threads.insert(block.info().thread, block.info().last_time);
            }
        }
        assert_eq!((accesses.len() as u64, stores), (counted.0.values().sum(), counted.1));
        assert!(dependent * 10 > accesses.len() && dependent < accesses.len());
        assert_eq!(threads.len(), 3, "{name}");
        let within = |address: &u64, (start, length, _): &(u64, u64, String)| {
            (*start..start + length).contains(address)
        };
        for address in &accesses {
            assert_eq!(objects.iter().filter(|object| within(address, object)).count(), 1);
        }
        // Each array got as many accesses as were seen of it.
        let of = |name: &str| {
            let object = objects.iter().find(|(.., known)| known == name).unwrap();
            accesses.iter().filter(|address| within(address, object)).count() as u64
        };
        let neighbors: u64 = counted
            .0
            .iter()
            .filter(|(array, _)| matches!(array, ObservedArray::Neighbors(_)))
            .map(|(_, count)| count)
            .sum();
        let inward = if recipe == directed { of("in neighbors") } else { 0 };
        assert_eq!(of("out neighbors") + inward, neighbors);
        assert_eq!(of("globals"), counted.0.get(&ObservedArray::Globals).copied().unwrap_or(0));
    }
}

#[test]
fn no_thread_begins_a_loop_before_the_others_have_ended_the_last() {
    // Two loops over 64 vertices: both threads do the same work in each, but the first has a
    // serial access before the second.
    let text = "program p;\nvertex a = 0;\nglobal g = 0;\n\
                parallel for v in vertices { v.a = v; }\n g = 1;\n\
                parallel for w in vertices { w.a = w.a + 1; }\n";
    let program = parse(text).unwrap();
    let (_, bytes) = record(&program, &graph("grid:scale=6"), &[], 2, &[], Vec::new()).unwrap();
    let mut reader = TraceReader::open(Cursor::new(bytes)).unwrap();
    let mut block = Block::new().unwrap();
    let mut begins = HashMap::<u32, Vec<u64>>::new();
    while reader.next_block(&mut block).unwrap() {
        if block.info().kind == BlockKind::Accesses {
            let mut times = Vec::new();
            block.times_into(&mut times);
            begins.entry(block.info().thread).or_default().extend(times);
        }
    }
    // 32 stores in the first loop; thread 0 then one more; then a load and a store for each vertex.
    let (first, second) = (&begins[&0], &begins[&1]);
    assert_eq!((first.len(), second.len()), (32 + 1 + 64, 32 + 64));
    assert_eq!(first[31], second[31]);
    assert!(second[32] > first[32], "{} after {}", second[32], first[32]);
    assert_eq!(first[33], second[32]);
}
