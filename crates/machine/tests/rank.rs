//! Tiers of small machines, built by hand.

use terrace_machine::{preset_or_error, rank, render_text, Machine, RankAttribute, TiersReport};
use terrace_types::{Bytes, NodeId};

/// A machine file of nodes (id, cpus, MiB) and further lines.
fn machine(nodes: &[(u16, &str, u32)], links: &str) -> Machine {
    let mut text = String::new();
    for (id, cpus, mib) in nodes {
        text += &format!("[[node]]\nid = {id}\ncpus = \"{cpus}\"\ncapacity = \"{mib} MiB\"\n");
    }
    Machine::from_toml(&(text + links), "hand").unwrap_or_else(|error| panic!("{error}"))
}

fn link(from: u16, to: u16, rest: &str) -> String {
    format!("[[link]]\ninitiator = {from}\ntarget = {to}\n{rest}\n")
}

/// Nodes by rank.
fn order(machine: &Machine, by: RankAttribute, from: Option<u16>) -> Vec<Vec<u16>> {
    let ranking = rank(machine, by, from.map(NodeId)).unwrap_or_else(|error| panic!("{error}"));
    ranking.tiers.iter().map(|t| t.nodes.iter().map(|n| n.0).collect()).collect()
}

fn preset(name: &str) -> Machine {
    preset_or_error(name).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn figures_rank_and_neither_names_nor_distances_do() {
    let hbm = preset("lab-hbm");
    assert_eq!(order(&hbm, RankAttribute::Bandwidth, None), [[1], [0]]);
    assert_eq!(order(&hbm, RankAttribute::Capacity, None), [[0], [1]]);
    // No latency gain: bandwidth breaks the tie, and that is said.
    assert_eq!(order(&hbm, RankAttribute::Latency, None), [[1], [0]]);
    let notes = rank(&hbm, RankAttribute::Latency, None).expect("ranking").notes;
    assert_eq!(notes, ["Nodes 1 and 0 tie by latency: bandwidth decides."]);

    let knl = preset("knl-flat");
    assert_eq!(order(&knl, RankAttribute::Bandwidth, None), [[1], [0]]);
    assert_eq!(order(&knl, RankAttribute::Latency, None), [[0], [1]]);
}

#[test]
fn each_socket_sees_its_own_memory_first() {
    let numa = preset("lab-numa");
    assert_eq!(order(&numa, RankAttribute::Bandwidth, Some(0)), [[0], [1]]);
    assert_eq!(order(&numa, RankAttribute::Bandwidth, Some(1)), [[1], [0]]);
}

#[test]
fn a_cluster_sees_its_own_half_of_each_kind_first() {
    let snc4 = preset("lab-snc4");
    let seen = order(&snc4, RankAttribute::Bandwidth, Some(2));
    assert_eq!(seen, [vec![6], vec![4, 5, 7], vec![2], vec![0, 1, 3]]);
    let by_latency = order(&snc4, RankAttribute::Latency, Some(2));
    assert_eq!(by_latency, [vec![6], vec![2], vec![4, 5, 7], vec![0, 1, 3]]);
}

#[test]
fn cpus_without_memory_and_memory_without_cpus() {
    let links = link(0, 1, "latency_ns = 90\nbandwidth = \"50 GB/s\"")
        + &link(0, 2, "latency_ns = 300\nbandwidth = \"9 GB/s\"");
    let machine = machine(&[(0, "0-3", 0), (1, "", 100), (2, "", 200)], &links);
    assert_eq!(order(&machine, RankAttribute::Bandwidth, None), [[1], [2]]);
    assert_eq!(order(&machine, RankAttribute::Capacity, None), [[2], [1]]);
    let error =
        rank(&machine, RankAttribute::Bandwidth, Some(NodeId(1))).expect_err("no CPUs").to_string();
    assert_eq!(error, "machine hand: node 1 has no CPUs to see from; nodes with CPUs are: 0");
    let error =
        rank(&machine, RankAttribute::Bandwidth, Some(NodeId(9))).expect_err("no node").to_string();
    assert!(error.contains("there is no node 9; nodes with CPUs are: 0"), "{error}");
}

#[test]
fn what_is_missing_ranks_after_what_is_known_and_is_said() {
    let links = link(0, 0, "bandwidth = \"10 GB/s\"")
        + &link(0, 1, "latency_ns = 5")
        + &link(0, 2, "latency_ns = 4")
        + &link(0, 3, "distance = 20")
        + &link(0, 4, "distance = 15")
        + &link(0, 5, "distance = 20");
    let nodes: Vec<(u16, &str, u32)> =
        (0..7).map(|id| (id, if id == 0 { "0" } else { "" }, 64)).collect();
    let machine = machine(&nodes, &links);
    let seen = order(&machine, RankAttribute::Bandwidth, None);
    assert_eq!(seen, [vec![0], vec![2], vec![1], vec![4], vec![3, 5], vec![6]]);
    let ranking = rank(&machine, RankAttribute::Bandwidth, None).expect("ranking");
    assert_eq!(
        ranking.notes,
        [
            "Nodes 1-2: no bandwidth is known from node 0, ranked after the others, by latency.",
            "Nodes 3-5: neither bandwidth nor latency is known from node 0, ranked after the \
                others, by distance.",
            "Node 6: nothing is known from node 0, ranked after the others, in no order.",
            "Nodes 3-5: order unknown. Only a distance is known, and fast memory without CPUs has \
             large ones too: they may be the fastest. Measure with `terrace probe -o \
             machine.toml`.",
        ]
    );
    let report = serde_json::to_value(TiersReport::new(&machine, &ranking, "hand")).expect("JSON");
    let tiers = &report["tiers"];
    assert_eq!(tiers[0]["evidence"]["read_bandwidth_bytes_per_s"], "config");
    assert_eq!(tiers[0]["evidence"]["read_latency_ns"], "unknown");
    assert!(tiers[1]["read_bandwidth_bytes_per_s"].is_null());
    assert_eq!(tiers[3]["evidence"]["read_bandwidth_bytes_per_s"], "distance");
    assert_eq!(tiers[5]["evidence"]["write_latency_ns"], "unknown");
}

#[test]
fn reads_rank_and_writes_break_ties() {
    let links = link(0, 0, "read_bandwidth = \"10 GB/s\"\nwrite_bandwidth = \"2 GB/s\"")
        + &link(0, 1, "read_bandwidth = \"10 GB/s\"\nwrite_bandwidth = \"4 GB/s\"")
        + &link(0, 2, "read_bandwidth = \"9 GB/s\"\nwrite_bandwidth = \"9 GB/s\"");
    let machine = machine(&[(0, "0", 1), (1, "", 1), (2, "", 1)], &links);
    assert_eq!(order(&machine, RankAttribute::Bandwidth, None), [[1], [0], [2]]);
}

#[test]
fn four_tiers_and_more() {
    let mut links = String::new();
    let mut nodes = Vec::new();
    for id in 0..6u16 {
        nodes.push((id, if id == 0 { "0" } else { "" }, 64));
        links += &link(0, id, &format!("bandwidth = \"{} GB/s\"", 60 - u32::from(id) / 2 * 10));
    }
    let machine = machine(&nodes, &links);
    assert_eq!(order(&machine, RankAttribute::Bandwidth, None), [[0, 1], [2, 3], [4, 5]]);
    let ranking = rank(&machine, RankAttribute::Bandwidth, None).expect("ranking");
    assert_eq!(ranking.tiers[0].capacity, Bytes::mib(128));
    assert_eq!(ranking.rank_of(NodeId(5)), Some(2));
}

#[test]
fn measured_figures_that_differ_by_noise_make_one_tier() {
    let measured =
        |ns| format!("latency_ns = {{ value = {ns}, evidence = \"measured\", spread = 1.5 }}");
    let links =
        link(0, 0, &measured(100)) + &link(0, 1, &measured(104)) + &link(0, 2, &measured(120));
    let machine = machine(&[(0, "0", 1), (1, "", 1), (2, "", 1)], &links);
    assert_eq!(order(&machine, RankAttribute::Latency, None), [vec![0, 1], vec![2]]);
    let stated = links.replace("measured", "config");
    let nodes = "[[node]]\nid = 0\ncpus = [0]\ncapacity = \"1 MiB\"\n[[node]]\nid = 1\ncapacity = \
        \"1 MiB\"\n[[node]]\nid = 2\ncapacity = \"1 MiB\"\n";
    let stated = Machine::from_toml(&(nodes.to_owned() + &stated), "hand").expect("machine");
    assert_eq!(order(&stated, RankAttribute::Latency, None), [[0], [1], [2]]);
}

#[test]
fn the_table_fits_a_terminal() {
    for name in terrace_machine::preset_names() {
        let machine = preset(name);
        for by in [RankAttribute::Bandwidth, RankAttribute::Latency, RankAttribute::Capacity] {
            let ranking = rank(&machine, by, None).expect("ranking");
            let text = render_text(&machine, &ranking, &format!("preset:{name}"));
            for line in text.lines() {
                assert!(line.chars().count() <= 80, "{name}: {line}");
                assert_eq!(line.trim_end(), line);
            }
        }
    }
    let machine = preset("lab-dcpmm");
    let ranking = rank(&machine, RankAttribute::Bandwidth, None).expect("ranking");
    assert_eq!(
        render_text(&machine, &ranking, "preset:lab-dcpmm"),
        "\
lab-dcpmm (preset:lab-dcpmm): memory by bandwidth, as CPUs of node 0 see it

rank  kind  nodes  capacity  bandwidth r/w  latency r/w  source
   0  dram  0       192 MiB      40.0 GB/s        80 ns  preset
   1  pmem  1         1 GiB  13.0/4.6 GB/s       300 ns  preset
"
    );
}

#[test]
fn the_json_has_the_keys_of_the_contract_and_no_others() {
    let machine = preset("lab-cxl");
    let ranking = rank(&machine, RankAttribute::Bandwidth, None).expect("ranking");
    let report = serde_json::to_value(TiersReport::new(&machine, &ranking, "preset:lab-cxl"));
    let report = report.expect("JSON");
    let keys = |value: &serde_json::Value| -> Vec<String> {
        value.as_object().expect("object").keys().cloned().collect()
    };
    let sorted = |mut keys: Vec<String>| {
        keys.sort();
        keys
    };
    assert_eq!(sorted(keys(&report)), ["initiator", "machine", "nodes", "source", "tiers"]);
    assert_eq!(sorted(keys(&report["nodes"][0])), ["capacity_bytes", "cpus", "id"]);
    assert_eq!(
        sorted(keys(&report["tiers"][0])),
        [
            "capacity_bytes",
            "evidence",
            "kind",
            "nodes",
            "rank",
            "read_bandwidth_bytes_per_s",
            "read_latency_ns",
            "write_bandwidth_bytes_per_s",
            "write_latency_ns",
        ]
    );
    assert_eq!(report["nodes"][0]["cpus"], serde_json::json!([0, 1]));
    assert_eq!(report["tiers"][0]["rank"], 0);
    assert_eq!(report["tiers"][0]["evidence"]["read_latency_ns"], "preset");
    assert_eq!(report["tiers"][1]["read_bandwidth_bytes_per_s"], 20_000_000_000u64);
}

#[test]
fn a_machine_with_other_cache_lines_is_ranked_with_a_note() {
    let machine = preset("power8-p100");
    let ranking = rank(&machine, RankAttribute::Bandwidth, None).expect("CPUs");
    let about =
        |note: &&String| note.contains("Cache lines of 128 B") && note.contains("terrace sim");
    assert_eq!(ranking.notes.iter().filter(about).count(), 1, "{:?}", ranking.notes);
    let usual = preset("lab-cxl");
    let ranking = rank(&usual, RankAttribute::Bandwidth, None).expect("CPUs");
    assert!(ranking.notes.iter().all(|note| !note.contains("Cache lines")), "{:?}", ranking.notes);
}
