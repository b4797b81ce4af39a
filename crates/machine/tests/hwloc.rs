//! hwloc XML written by hand: what is taken, and what hostile input gets.

use terrace_machine::{from_hwloc_xml, rank, Evidence, MemoryKind, RankAttribute, Survey};
use terrace_types::{Bytes, CpuId, NodeId};

const FIXTURE: &str = include_str!("../../../fixtures/machines/hbm-and-cxl.xml");
const MIB: u64 = 1 << 20;

fn read(text: &str) -> Survey {
    from_hwloc_xml(text, "x.xml").unwrap_or_else(|error| panic!("{error}"))
}

fn error(text: &str) -> String {
    let error = from_hwloc_xml(text, "x.xml").expect_err("refused").to_string();
    assert!(!error.contains('\n') && error.contains("x.xml"), "{error}");
    error
}

/// A topology around `inner`, with one node so that the rest is sound.
fn around(inner: &str) -> String {
    format!(
        "<topology version=\"3.0\"><object type=\"Machine\" gp_index=\"1\"><object \
            type=\"NUMANode\" os_index=\"0\" \
         cpuset=\"0x1\" gp_index=\"2\" local_memory=\"4096\"/>{inner}</object></topology>"
    )
}

#[test]
fn nodes_are_distinguished_though_hwloc_gives_all_of_them_cpus() {
    let machine = read(FIXTURE).machine;
    assert_eq!(machine.name, "hbm-and-cxl");
    let cpus = |id| machine.node(NodeId(id)).map(|n| n.cpus.clone()).unwrap_or_default();
    assert_eq!(cpus(0), [CpuId(0), CpuId(1)]);
    assert_eq!(cpus(1), [CpuId(2), CpuId(3)]);
    assert!(cpus(2).is_empty() && cpus(3).is_empty() && cpus(4).is_empty());
    let kinds: Vec<MemoryKind> = machine.nodes.iter().map(|n| n.kind).collect();
    assert_eq!(
        kinds,
        [MemoryKind::Dram, MemoryKind::Dram, MemoryKind::Hbm, MemoryKind::Hbm, MemoryKind::Cxl]
    );
    let packages: Vec<Option<u32>> = machine.nodes.iter().map(|n| n.package).collect();
    assert_eq!(packages, [Some(0), Some(1), Some(0), Some(1), Some(1)]);
    assert!(machine.notes.iter().any(|n| n.contains("CPUs near several of nodes 0-4")));
}

#[test]
fn the_closest_initiator_speaks_and_devices_do_not() {
    let machine = read(FIXTURE).machine;
    let rates = |from, to| {
        let link = machine.link(NodeId(from), NodeId(to)).expect("link");
        let mib = |f: Option<terrace_machine::Figure<terrace_types::BytesPerSec>>| {
            f.map(|f| f.value.get() / MIB)
        };
        (mib(link.read_bandwidth), mib(link.write_bandwidth), link.distance)
    };
    // Of the values for 0xf, 0x3, 0x1 and the GPU, that for 0x3 is the smallest that holds both
    // CPUs.
    assert_eq!(rates(0, 2), (Some(900_000), Some(900_000), Some(13)));
    // An object that has CPUs stands for them.
    assert_eq!(rates(1, 1), (Some(250_000), Some(250_000), Some(10)));
    // All of package 1 sees the HBM of package 0 by the value for 0xf alone.
    assert_eq!(rates(1, 2), (Some(7), Some(7), Some(23)));
    // The more exact attribute wins over the general one.
    assert_eq!(rates(1, 4), (Some(60_000), Some(30_000), Some(14)));
    let cxl = machine.link(NodeId(1), NodeId(4)).expect("link");
    assert_eq!(cxl.read_latency.map(|f| (f.value.get(), f.evidence)), Some((240, Evidence::Hmat)));
    assert_eq!(cxl.write_latency, None, "a latency of 0 is none");
    assert!(machine.notes.iter().any(|n| n.contains("1 memory attributes were 0")));
    // From node 0 the remote nodes are known by distance alone.
    assert_eq!(rates(0, 1), (None, None, Some(21)));
}

#[test]
fn ranks_and_caches() {
    let machine = read(FIXTURE).machine;
    let order = |by, from| -> Vec<Vec<u16>> {
        let ranking = rank(&machine, by, Some(NodeId(from))).expect("ranking");
        ranking.tiers.iter().map(|t| t.nodes.iter().map(|n| n.0).collect()).collect()
    };
    assert_eq!(order(RankAttribute::Bandwidth, 0), [[2], [0], [1], [3], [4]]);
    assert_eq!(order(RankAttribute::Latency, 1), [[1], [3], [4], [2], [0]]);
    let caches: Vec<(u8, Bytes, u32, bool)> =
        machine.caches.iter().map(|c| (c.level, c.size, c.ways, c.shared)).collect();
    assert_eq!(
        caches,
        [
            (1, Bytes(49_152), 12, true),
            (2, Bytes::mib(2), 16, true),
            (3, Bytes(118_489_088), 16, true),
        ]
    );
}

#[test]
fn hostile_input_gets_one_line() {
    for (text, part) in [
        (String::new(), "not <topology>"),
        ("hello".to_owned(), "not <topology>"),
        ("<svg/>".to_owned(), "its root is <svg>"),
        ("<topology/>".to_owned(), "it has no nodes"),
        ("<topology version=\"4.0\"/>".to_owned(), "format version 4.0"),
        ("<topology version=\"3.0\"/>".to_owned(), "it has no nodes"),
        ("<topology version=\"3.0\">".to_owned(), "never closed"),
        ("<topology version=\"3.0\"></object>".to_owned(), "not well-formed"),
        ("<topology version=\"3.0\"/><topology version=\"3.0\"/>".to_owned(), "second root"),
        (
            "<!DOCTYPE topology [<!ENTITY a \"b\">]><topology version=\"3.0\"/>".to_owned(),
            "entities",
        ),
        (around("&lol;"), "entities"),
        (around("<info name=\"a\" value=\"&lol;\"/>"), "not well-formed"),
        (around("<object type=\"NUMANode\" gp_index=\"3\"/>"), "lacks os_index"),
        (around("<object type=\"NUMANode\" os_index=\"0\"/>"), "node 0 is described twice"),
        (around("<object type=\"NUMANode\" os_index=\"99999999999999999999\"/>"), "a whole number"),
        (
            around("<object type=\"NUMANode\" os_index=\"1\" local_memory=\"-4\"/>"),
            "local_memory=\"-4\"",
        ),
        (around("<object type=\"NUMANode\" os_index=\"1\" cpuset=\"0xf...f\"/>"), "a mask such as"),
        (
            around(
                "<object type=\"NUMANode\" os_index=\"1\" local_memory=\"18446744073709551615\"/>",
            ),
            "capacity of node 1",
        ),
        (around("<object type=\"Package\" type=\"Package\"/>"), "given twice"),
        (
            around("<distances2 type=\"NUMANode\" kind=\"5\"><indexes>x</indexes></distances2>"),
            "whole numbers",
        ),
        (
            around(
                "<memattr name=\"Latency\"><memattr_value target_obj_gp_index=\"2\"/></memattr>",
            ),
            "lacks value",
        ),
        (
            around(&"<object type=\"NUMANode\" os_index=\"1\"/>".repeat(1024)),
            "more than 1024 NUMA nodes",
        ),
        (around(&"<object type=\"OSDev\"/>".repeat(131_072)), "more than 131072 objects"),
        (
            around(
                &format!(
                    "<object type=\"Group\" cpuset=\"0xffffffff{}\"/>",
                    ",0xffffffff".repeat(255)
                )
                .repeat(2_049),
            ),
            "more than 16777216 CPUs",
        ),
        (around(&"<x>".repeat(1000)), "nested deeper than 256"),
        (
            around(&format!(
                "<x {}/>",
                (0..100).map(|i| format!("a{i}=\"1\" ")).collect::<String>()
            )),
            "more than 64 attributes",
        ),
        (around(&"<x/>".repeat(2_000_001)), "more than 2000000 elements"),
    ] {
        let error = error(&text);
        assert!(error.contains(part), "{error}\nlacks {part}");
    }
}

#[test]
fn lines_are_counted() {
    let text = FIXTURE.replace("local_memory=\"274877906944\"", "local_memory=\"lots\"");
    assert!(error(&text).starts_with("hwloc XML x.xml, line 27: object has local_memory=\"lots\""));
}

#[test]
fn a_table_of_distances_that_is_no_square_is_ignored() {
    let text = FIXTURE.replace("10 21 13 23 24 ", "10 21 13 23 ");
    assert!(read(&text).machine.links.iter().all(|l| l.distance.is_none()));
}

#[test]
fn version_1_is_read() {
    let numa = |os: u32, cpus: &str, inner: &str| {
        format!(
            "<object type=\"NUMANode\" os_index=\"{os}\" cpuset=\"{cpus}\" \
                local_memory=\"8589934592\">\
             <object type=\"Socket\" os_index=\"{os}\" cpuset=\"{cpus}\">{inner}</object></object>"
        )
    };
    let cache = |kind: u32, size: u32| {
        format!(
            "<object type=\"Cache\" cpuset=\"0x3\" cache_size=\"{size}\" depth=\"1\" \
             cache_linesize=\"64\" cache_associativity=\"8\" cache_type=\"{kind}\"/>"
        )
    };
    let inner = cache(2, 65_536) + &cache(1, 32_768);
    let latencies = ["1.000000", "2.100000", "2.100000", "1.000000"];
    let latencies: String = latencies.map(|value| format!("<latency value=\"{value}\"/>")).concat();
    let text = format!(
        "<topology><object type=\"Machine\" os_index=\"0\" cpuset=\"0xf\">{}{}\
         <distances nbobjs=\"2\" relative_depth=\"1\" \
         latency_base=\"10.000000\">{latencies}</distances>\
         </object></topology>",
        numa(0, "0x3", &inner),
        numa(2, "0xc", "")
    );
    let machine = read(&text).machine;
    let nodes: Vec<(u16, usize, u64, Option<u32>)> = machine
        .nodes
        .iter()
        .map(|n| (n.id.0, n.cpus.len(), n.capacity.get() >> 30, n.package))
        .collect();
    assert_eq!(nodes, [(0, 2, 8, Some(0)), (2, 2, 8, Some(2))]);
    let distance = |from, to| machine.link(NodeId(from), NodeId(to)).and_then(|l| l.distance);
    assert_eq!((distance(0, 0), distance(0, 2)), (Some(10), Some(21)));
    assert_eq!(
        machine.caches.iter().map(|c| (c.level, c.size)).collect::<Vec<_>>(),
        [(1, Bytes(32_768))]
    );
    // A table of as many objects of another kind cannot be distinguished; one of another size can.
    let text = text.replace("nbobjs=\"2\"", "nbobjs=\"4\"");
    assert!(read(&text).machine.links.iter().all(|l| l.distance.is_none()));
}

#[test]
fn a_machine_of_version_1_without_numa_nodes_is_one_node() {
    let text =
        "<topology><object type=\"Machine\" cpuset=\"0x3\" local_memory=\"4096\"/></topology>";
    let machine = read(text).machine;
    assert_eq!((machine.nodes.len(), machine.nodes[0].cpus.len()), (1, 2));
    assert!(machine.notes.iter().any(|n| n.contains("all memory is taken as node 0")));
}

#[test]
fn facts_that_do_not_fit_are_left_out_with_a_note() {
    let notes = |text: &str| read(text).machine.notes.join("\n");
    // A node beyond those that can be managed, and one of which no size is stated.
    let text = around("<object type=\"NUMANode\" os_index=\"300\" local_memory=\"4096\"/>");
    assert!(notes(&text).contains("Nodes 300 are left out"), "{}", notes(&text));
    let text = around("<object type=\"NUMANode\" os_index=\"1\"/>");
    assert!(notes(&text).contains("memory of nodes 1 is not stated"), "{}", notes(&text));
    let pages = "<object type=\"NUMANode\" os_index=\"1\">\
                 <page_type size=\"4096\" count=\"2\"/><page_type size=\"2097152\" \
                 count=\"1\"/></object>";
    assert_eq!(read(&around(pages)).machine.nodes[1].capacity, Bytes(2_105_344));
    // CPUs whose nodes hwloc left out, and a node that lists none.
    let text = around("").replace("type=\"Machine\"", "type=\"Machine\" cpuset=\"0xff\"");
    assert!(notes(&text).contains("CPUs 1-7 are of no node"), "{}", notes(&text));
    let text = text.replace("cpuset=\"0x1\"", "cpuset=\"0x0\"");
    assert_eq!(read(&text).machine.nodes[0].cpus.len(), 8);
}

#[test]
fn a_knights_landing_is_known_by_its_package() {
    let infos = [("CPUVendor", "GenuineIntel"), ("CPUFamilyNumber", "6"), ("CPUModelNumber", "87")];
    let infos = infos.map(|(name, value)| format!("<info name=\"{name}\" value=\"{value}\"/>"));
    let table = "<distances2 type=\"NUMANode\" nbobjs=\"2\" kind=\"5\" indexing=\"os\">\
                 <indexes length=\"4\">0 1 </indexes><u64values length=\"12\">10 31 31 10 \
                 </u64values></distances2>";
    let inner = format!(
        "<object type=\"NUMANode\" os_index=\"1\" cpuset=\"0x0\" gp_index=\"3\" \
            local_memory=\"4096\"/>\
         <object type=\"Package\" os_index=\"0\" cpuset=\"0x1\" gp_index=\"4\">{}</object>{table}",
        infos.concat()
    );
    let machine = read(&around(&inner)).machine;
    let ranking = rank(&machine, RankAttribute::Bandwidth, None).expect("ranking");
    assert_eq!(
        (ranking.tiers[0].nodes.clone(), machine.nodes[1].kind),
        (vec![NodeId(1)], MemoryKind::Hbm)
    );
    assert_eq!(ranking.tiers[0].read_bandwidth.map(|f| f.evidence), Some(Evidence::Preset));
}
