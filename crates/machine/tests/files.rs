//! Machine files: what is accepted, and the one line each mistake gets.

use terrace_machine::{Evidence, Machine, MachineConflict, MachineError, MemoryKind};
use terrace_types::{Bytes, BytesPerSec, CpuId, Nanos, NodeId};

const NODE: &str = "[[node]]\nid = 0\ncpus = [0]\ncapacity = \"1 GiB\"\n";

fn read(text: &str) -> Machine {
    Machine::from_toml(text, "m.toml").unwrap_or_else(|error| panic!("{error}"))
}

/// The message for NODE and then `rest`; always one line that names the file or machine.
fn error(rest: &str) -> String {
    let text = format!("{NODE}{rest}");
    let error = Machine::from_toml(&text, "m.toml").expect_err("a mistake").to_string();
    assert!(!error.contains('\n') && error.contains("m.toml"), "{error}");
    error
}

#[test]
fn the_least_machine_gets_defaults_and_says_so() {
    let machine = read(NODE);
    assert_eq!(machine.name, "m.toml");
    assert_eq!(machine.page_size, Bytes(4096));
    assert_eq!(machine.nodes[0].kind, MemoryKind::Unknown);
    assert_eq!(machine.nodes[0].block, Bytes(64));
    assert_eq!(machine.notes.len(), 2);
    assert!(machine.links.is_empty() && machine.caches.is_empty());
}

#[test]
fn units_and_forms() {
    let machine = read(
        "page_size = \"64 KiB\"\n[core]\ntlb_flush_us = 1.5\n[migration]\ncall_ns = 7\n\
         [[node]]\nid = 3\ncpus = \"8-9,1\"\ncapacity = \"16 GB\"\n\
         [[link]]\ninitiator = 3\ntarget = 3\nlatency_ns = 84.4\nread_bandwidth = \"2.5 GB/s\"\n\
         write_bandwidth = \
         { value = \"1 GiB/s\", evidence = \"measured\", spread = \"3 MB/s\" }\nevidence = \
         \"hmat\"\n",
    );
    assert_eq!(machine.page_size, Bytes(65_536));
    assert_eq!(machine.core.tlb_flush, Nanos(1_500));
    assert_eq!(machine.migration.call, Nanos(7));
    assert_eq!(machine.migration.page, Nanos(2_300));
    assert_eq!(machine.nodes[0].cpus, [CpuId(1), CpuId(8), CpuId(9)]);
    assert_eq!(machine.nodes[0].capacity, Bytes(16_000_000_000));
    let link = machine.link(NodeId(3), NodeId(3)).expect("link");
    let latency = link.read_latency.expect("latency");
    assert_eq!((latency.value, latency.evidence), (Nanos(84), Evidence::Hmat));
    assert_eq!(link.write_latency, link.read_latency);
    let write = link.write_bandwidth.expect("bandwidth");
    assert_eq!((write.value, write.evidence), (BytesPerSec(1 << 30), Evidence::Measured));
}

#[test]
fn mistakes_name_line_key_and_cure() {
    for (rest, parts) in [
        ("[[node]]\nid = 1\n", vec!["line 5", "`node.capacity` is missing", "16 GiB"]),
        ("[[node]]\ncapacity = \"1 B\"\n", vec!["line 5", "`node.id` is missing"]),
        (
            "[[node]]\nid = 1\ncapacity = \
            5\n",
            vec![
                "line 7",
                "`node.capacity` is 5",
                "unit in \
            quotes",
            ],
        ),
        ("[[node]]\nid = 1\ncapacity = \"-5 GiB\"\n", vec!["line 7", "\"-5 GiB\""]),
        ("[[node]]\nid = 1\ncapacity = \"5 Gib\"\n", vec!["line 7", "\"5 Gib\""]),
        (
            "[[node]]\nid = 1\ncapactiy = \"5 \
            GiB\"\n",
            vec!["line 7", "unknown key `node.capactiy`", "capacity"],
        ),
        ("[[nodes]]\nid = 1\n", vec!["line 5", "unknown key `nodes`", "node, link"]),
        (
            "[[node]]\nid = 256\ncapacity = \"1 \
            B\"\n",
            vec!["line 6", "`node.id` is 256", "0 to 255"],
        ),
        ("[[node]]\nid = -1\ncapacity = \"1 B\"\n", vec!["line 6", "-1"]),
        (
            "[[node]]\nid = 1\ncapacity = \"1 B\"\nkind = \
            \"ddr\"\n",
            vec!["line 8", "\"ddr\"", "dram, hbm"],
        ),
        (
            "[[node]]\nid = 1\ncapacity = \"1 B\"\ncpus = \
            [9999999999]\n",
            vec!["line 8", "9999999999"],
        ),
        ("[[node]]\nid = 1\ncapacity = \"1 B\"\ncpus = \"0-99999\"\n", vec!["line 8", "8191"]),
        (
            "[[link]]\ninitiator = 0\ntarget = 0\nlatency_ns = \
            nan\n",
            vec!["line 8", "`link.latency_ns` is nan"],
        ),
        ("[[link]]\ninitiator = 0\ntarget = 0\nlatency_ns = -3\n", vec!["line 8", "-3"]),
        (
            "[[link]]\ninitiator = 0\ntarget = 0\nlatency_ns = \"80 \
            ns\"\n",
            vec!["line 8", "80 ns", "a number"],
        ),
        (
            "[[link]]\ninitiator = 0\ntarget = 0\nbandwidth = \"80 \
            Gb/s\"\n",
            vec!["line 8", "20 GB/s"],
        ),
        (
            "[[link]]\ninitiator = 0\ntarget = 0\nbandwidth = { evidence = \"hmat\" }\n",
            vec!["line 8", "`bandwidth.value` is missing"],
        ),
        (
            "[[link]]\ninitiator = 0\ntarget = 0\nbandwidth = \
                { value = \"1 B/s\", evidence = \"guess\" }\n",
            vec!["line 8", "guess", "hmat, measured"],
        ),
        (
            "[[link]]\ninitiator = 0\ntarget = 0\nlatency_ns = 1\nread_latency_ns = \
            2\n",
            vec![
                "line \
            8",
                "both \
            given",
            ],
        ),
        ("[core]\ntlb_flush_us = 1\ntlb_flush_ns = 2\n", vec!["line 7", "both given"]),
        ("[core]\noutstanding_misses = 0\n", vec!["line 6", "1 to 65536"]),
        ("[[cache]]\nlevel = 1\nsize = \"32 KiB\"\n", vec!["line 5", "`cache.ways` is missing"]),
        ("core = 3\n", vec!["unknown key `node.core`"]),
        ("[[node\n", vec!["line 5", "not valid TOML"]),
        ("notes = 3\n", vec!["unknown key `node.notes`"]),
    ] {
        let error = error(rest);
        for part in parts {
            assert!(error.contains(part), "{error}\nlacks {part}");
        }
    }
}

#[test]
fn parts_that_contradict_each_other() {
    let node = |id, cpus: &str| format!("[[node]]\nid = {id}\ncpus = {cpus}\ncapacity = \"1 B\"\n");
    let link = |from, to| format!("[[link]]\ninitiator = {from}\ntarget = {to}\nlatency_ns = 5\n");
    for (rest, part) in [
        (node(0, "[]"), "node 0 is described twice"),
        (node(1, "[0]"), "CPU 0 is on node 0 and on node 1"),
        (node(1, "[1, 1]"), "CPU 1 is on node 1 and on node 1"),
        (node(1, "[8192]"), "CPU 8192 is above 8191"),
        (link(0, 7), "node 7 is not described"),
        (link(7, 0), "node 7 is not described"),
        (link(0, 0) + &link(0, 0), "from node 0 to node 0 is described twice"),
        ("[[node]]\nid = 1\ncapacity = \"0 B\"\n".to_owned() + &link(0, 1), "which has no memory"),
        ("[[node]]\nid = 1\ncapacity = \"2000000 TiB\"\n".to_owned(), "capacity of node 1"),
        ("[[node]]\nid = 1\ncapacity = \"1 B\"\nblock = \"65 B\"\n".to_owned(), "a power of two"),
        (
            "[[node]]\nid = 1\ncapacity = \"9 B\"\nreserved = \"4 B\"\nin_use = \"5 B\"\n"
                .to_owned(),
            "in_use of node 1",
        ),
        (link(0, 0).replace("= 5", "= 5e12"), "read latency from node 0 to node 0"),
        (link(0, 0).replace("= 5", "= 0"), "above 0"),
        (link(0, 0).replace("latency_ns = 5", "bandwidth = \"90000 TB/s\""), "at most 1000 TB/s"),
        ("[core]\nns_per_instruction = 0\n".to_owned(), "core.ns_per_instruction"),
        ("[migration]\ncall_us = 9e17\n".to_owned(), "at most an hour"),
        ("[[cache]]\nlevel = 1\nsize = \"3 KiB\"\nways = 7\n".to_owned(), "whole number of sets"),
        ("[[far]]\nfault_us = 5\n".to_owned(), "name = \"file\""),
        ("[[far]]\nname = \"a/b\"\n".to_owned(), "up to 32 letters"),
        ("[[far]]\nname = \"\"\n".to_owned(), "up to 32 letters"),
        ("[[far]]\nname = \"a\"\n[[far]]\nname = \"a\"\n".to_owned(), "a name of its own"),
        ("[[far]]\nname = \"a\"\noperation_us = 1000001\n".to_owned(), "at most 1 s"),
        (
            "[[far]]\nname = \"a\"\nread_bandwidth = \"0 B/s\"\n".to_owned(),
            "read bandwidth of far store a",
        ),
        (
            "[[far]]\nname = \"a\"\nwrite_bandwidth = \"90000 TB/s\"\n".to_owned(),
            "at most 1000 TB/s",
        ),
        ("[[far]]\nname = \"a\"\npage_us = 1\npage_ns = 1\n".to_owned(), "page_ns"),
        ("[[far]]\nname = \"a\"\nspeed = 1\n".to_owned(), "speed"),
        ("[[far]]\nname = \"a\"\n".repeat(17), "at most 16"),
    ] {
        let error = error(&rest);
        assert!(error.contains(part), "{error}\nlacks {part}");
    }
}

#[test]
fn machines_of_nothing() {
    for (text, problem) in [
        ("", MachineConflict::NoNodes),
        (
            "name = \"\"\n[[node]]\nid = 0\ncpus = [0]\ncapacity = \"1 B\"\n",
            MachineConflict::BadName,
        ),
        (
            "name = \"a\\u0007\"\n[[node]]\nid = 0\ncpus = [0]\ncapacity = \"1 B\"\n",
            MachineConflict::BadName,
        ),
        ("[[node]]\nid = 0\ncapacity = \"1 B\"\n", MachineConflict::NoCpus),
        ("[[node]]\nid = 0\ncpus = [0]\ncapacity = \"0 B\"\n", MachineConflict::NoMemory),
    ] {
        let want = MachineError::Inconsistent { name: "m".to_owned(), problem };
        assert_eq!(Machine::from_toml(text, "m"), Err(want), "{text}");
    }
}

#[test]
fn deep_nesting_and_large_files_are_refused() {
    let deep = format!("notes = {}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(Machine::from_toml(&deep, "m").is_err());
    let nodes = "[[node]]\nid = 0\ncpus = \"0-8191\"\ncapacity = \"1 B\"\n".repeat(257);
    let error = Machine::from_toml(&nodes, "m").expect_err("many").to_string();
    assert!(
        error.contains("line 1025: `node` is a table; expected at most 256 of them"),
        "{error}"
    );
    let large = "# x\n".repeat(5 << 20);
    let error = Machine::from_toml(&large, "m").expect_err("large").to_string();
    assert!(error.contains("is it the right file?"), "{error}");
}

#[test]
fn the_examples_of_the_manual_are_read() {
    let manual = include_str!("../../../docs/machine-file.md");
    let examples: Vec<&str> =
        manual.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let [nodes, rest] = examples.as_slice() else { panic!("two examples") };
    let machine = read(nodes);
    assert_eq!(
        (machine.name.as_str(), machine.nodes.len(), machine.links.len()),
        ("two-tiers", 2, 2)
    );
    // Top-level keys of the second must come before the tables of the first.
    let whole = read(&format!("{rest}{}", nodes.split_once('\n').expect("name first").1));
    assert_eq!(whole.notes, ["Measured at night."]);
    assert_eq!(whole.caches.len(), 1);
    assert_eq!((whole.core, whole.migration), (machine.core, machine.migration));
    let [usual, _] = terrace_machine::FarStore::usual();
    let named =
        terrace_machine::FarStore { name: "nvme".to_owned(), evidence: Evidence::Config, ..usual };
    assert_eq!((whole.far_store("nvme"), whole.far_store("file")), (Some(named), None));
    assert_eq!(machine.far_stores().len(), 2);
}
