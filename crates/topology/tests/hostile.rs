//! Trees and archives that are damaged or made to harm: one clear line, no panic, nothing outside
//! the tree.

mod common;

use common::{fixture, Scratch};
use std::fs;
use std::os::unix::fs::symlink;
use terrace_machine::Machine;
use terrace_topology::{
    gather, load, read_archive, survey, DiskTree, FileKind, FileTree, MachineSource, MemoryTree,
    View,
};
use terrace_types::Bytes;

const NODE: &str = "sys/devices/system/node/node0";

/// A sound tree of one node.
fn sound() -> MemoryTree {
    let mut tree = MemoryTree::new();
    tree.file(&format!("{NODE}/cpulist"), "0-1\n")
        .file(&format!("{NODE}/meminfo"), "Node 0 MemTotal:  1024 kB\n")
        .file(&format!("{NODE}/distance"), "10\n")
        .link(&format!("{NODE}/access0/initiators/node0"), "../../../node0")
        .file(&format!("{NODE}/access0/initiators/read_latency"), "80\n");
    tree
}

fn error(tree: &MemoryTree) -> String {
    let error = survey(tree, "t").expect_err("refused").to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

#[test]
fn the_tree_that_the_others_are_made_from_is_sound() {
    let found = survey(&sound(), "t").unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(found.machine.name, "t");
    assert_eq!(found.machine.links.len(), 1);
}

/// The machine of a tree, and its notes as one text.
fn noted(tree: &MemoryTree) -> (Machine, String) {
    let found = survey(tree, "t").unwrap_or_else(|error| panic!("{error}"));
    let notes = found.machine.notes.join("\n");
    (found.machine, notes)
}

#[test]
fn a_file_that_holds_something_else_is_left_out_with_a_note() {
    // Two sound nodes, of which the first one's files are damaged one by one.
    let two = || {
        let mut tree = sound();
        tree.file("sys/devices/system/node/node1/cpulist", "2-3\n")
            .file("sys/devices/system/node/node1/meminfo", "Node 1 MemTotal:  2048 kB\n")
            .file("sys/devices/system/node/node1/distance", "20 10\n")
            .file(&format!("{NODE}/distance"), "10 20\n");
        tree
    };
    assert!(!noted(&two()).1.contains("taken as not known"));
    for (path, content, part) in [
        ("cpulist", "all of them", "a list such as 0-3,8"),
        ("cpulist", "0-99999", "a list such as 0-3,8"),
        ("cpulist", "0-9000", "Numbers above 8191"),
        ("meminfo", "", "MemTotal: NUMBER kB"),
        ("meminfo", "Node 0 MemTotal: 99999999999999999999 kB", "MemTotal: NUMBER kB"),
        ("meminfo", "Node 0 MemTotal: 9999999999999999 kB", "MemTotal: NUMBER kB"),
        ("distance", "10 20 30", "one number for each node"),
        ("distance", "ten 20", "1 distance is no number from 1 to 1000000"),
        ("distance", "0 0", "2 distances are no number"),
        ("access0/initiators/read_latency", "fast\u{1b}[31m", "holds \"fast\\u{1b}[31m\""),
        ("access0/initiators/node99999", "", "node numbers above 65535"),
    ] {
        let mut tree = two();
        tree.file(&format!("{NODE}/{path}"), content);
        let (machine, notes) = noted(&tree);
        assert!(notes.contains(part), "{path}: {notes}\nlacks {part}");
        assert_eq!(machine.nodes.len(), 2, "{path}");
    }
}

#[test]
fn what_makes_no_machine_is_refused() {
    let mut tree = sound();
    tree.file("terrace-gather", "version 1\npage_size_bytes 5\n");
    assert!(error(&tree).contains("page_size is 5 B"));
    let mut tree = sound();
    tree.file(&format!("{NODE}/cpulist"), vec![b'0'; 70_000]);
    assert!(error(&tree).contains("more than 65536 bytes"));
    let mut tree = MemoryTree::new();
    tree.file(&format!("{NODE}/meminfo"), "Node 0 MemTotal:  1024 kB\n");
    assert!(error(&tree).contains("no node has CPUs"));
}

#[test]
fn many_odd_facts_are_counted_in_place_of_listed() {
    let mut tree = sound();
    for node in 1..200 {
        tree.file(&format!("sys/devices/system/node/node{node}/cpulist"), "odd");
    }
    let (machine, notes) = noted(&tree);
    assert_eq!(machine.nodes.len(), 200);
    assert!(notes.lines().count() < 25 && notes.contains("more such facts"), "{notes}");
}

#[test]
fn figures_beyond_reason_are_none_and_counted() {
    let mut tree = sound();
    tree.file(&format!("{NODE}/access0/initiators/read_latency"), "99999999999\n")
        .file(&format!("{NODE}/access0/initiators/read_bandwidth"), "0\n");
    let found = survey(&tree, "t").unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(found.machine.links[0].read_latency, None);
    assert!(found.machine.notes.iter().any(|n| n.starts_with("2 figures of the HMAT")));
}

#[test]
fn links_in_a_circle_and_out_of_the_tree() {
    let mut tree = sound();
    tree.link(&format!("{NODE}/cpulist"), "cpulist");
    assert!(error(&tree).contains("more than 40 symbolic links"));
    let mut tree = sound();
    tree.link(&format!("{NODE}/cpulist"), "../../../../../../../../../../../etc/hostname")
        .file("etc/hostname", "0\n");
    let found = survey(&tree, "t").unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(found.machine.nodes[0].cpus.len(), 1, "the tree's own etc/hostname was read");

    let scratch = Scratch::new("links");
    let outside = scratch.0.join("secret");
    fs::write(&outside, "0-7\n").expect("write");
    let root = scratch.0.join("tree");
    let node = root.join(NODE);
    fs::create_dir_all(&node).expect("mkdir");
    fs::write(node.join("meminfo"), "Node 0 MemTotal:  1024 kB\n").expect("write");
    symlink(&outside, node.join("cpulist")).expect("symlink");
    symlink("../../../../../../../secret", node.join("cpumap")).expect("symlink");
    let disk = DiskTree::new(&root);
    let view = View::new(&disk, "t").unwrap_or_else(|error| panic!("{error}"));
    assert!(matches!(disk.entry(&format!("{NODE}/cpulist")), FileKind::Link(_)));
    assert_eq!(view.text(&format!("{NODE}/cpulist")).ok(), Some(None));
    assert_eq!(view.text(&format!("{NODE}/cpumap")).ok(), Some(None));
}

#[test]
fn a_pipe_is_never_opened() {
    let scratch = Scratch::new("pipe");
    let node = scratch.0.join(NODE);
    fs::create_dir_all(&node).expect("mkdir");
    fs::write(node.join("meminfo"), "Node 0 MemTotal:  1024 kB\n").expect("write");
    let made = std::process::Command::new("mkfifo").arg(node.join("cpulist")).status();
    if !made.is_ok_and(|status| status.success()) {
        println!("skipped: no mkfifo");
        return;
    }
    // Without CPUs there is no machine; what matters is that this returns.
    let error = load(&MachineSource::Path(scratch.0.clone())).expect_err("no CPUs").to_string();
    assert!(error.contains("no node has CPUs"), "{error}");
}

#[test]
fn files_that_are_something_else() {
    let scratch = Scratch::new("formats");
    for (name, content, part) in [
        ("noise", &b"\xff\xfe\x00\x01"[..], "neither a machine file"),
        ("zeros", &[0; 600][..], "neither a machine file"),
        ("packed", &b"\x1f\x8b\x08"[..], "compressed with gzip"),
        ("page.html", &b"<html></html>"[..], "its root is <html>"),
        ("empty.toml", &b""[..], "it has no nodes"),
    ] {
        let path = scratch.0.join(name);
        fs::write(&path, content).expect("write");
        let error = load(&MachineSource::Path(path)).expect_err("refused").to_string();
        assert!(error.contains(part) && !error.contains('\n'), "{name}: {error}");
    }
    let error = load(&MachineSource::Path(scratch.0.clone())).expect_err("refused").to_string();
    assert!(error.contains("no sys/devices/system in it"), "{error}");
    let error =
        load(&MachineSource::Path(scratch.0.join("none"))).expect_err("refused").to_string();
    assert!(error.contains("no such file or folder"), "{error}");
    let error = load(&MachineSource::parse("preset:none")).expect_err("refused").to_string();
    assert!(error.contains("no preset named `none`"), "{error}");
}

#[test]
fn what_is_gathered_reads_the_same() {
    for name in ["lab-cxl", "cxl-region", "no-hmat", "no-numa", "snc4-hbm"] {
        let tree = DiskTree::new(fixture(&format!("sysfs/{name}")));
        let mut bytes = Vec::new();
        let page = Bytes(65_536);
        let gathered = gather(&tree, page, &mut bytes).unwrap_or_else(|error| panic!("{error}"));
        assert!(gathered.files > 5 && gathered.skipped.is_empty(), "{gathered:?}");
        let archive = read_archive(&bytes, name).unwrap_or_else(|error| panic!("{error}"));
        let again = survey(&archive, name).unwrap_or_else(|error| panic!("{error}"));
        let mut first = survey(&tree, name).unwrap_or_else(|error| panic!("{error}"));
        first.machine.page_size = page;
        assert_eq!(first, again, "{name}");
        let mut twice = Vec::new();
        gather(&archive, page, &mut twice).unwrap_or_else(|error| panic!("{error}"));
        assert!(bytes == twice, "{name}: gathering what was gathered changes nothing");
    }
}

#[test]
fn this_machine_is_read_gathered_and_read_again() {
    let live = load(&MachineSource::Live).unwrap_or_else(|error| panic!("{error}"));
    assert!(!live.machine.nodes.is_empty());
    let mut bytes = Vec::new();
    let gathered = gather(&DiskTree::live(), live.machine.page_size, &mut bytes)
        .unwrap_or_else(|error| panic!("{error}"));
    assert!(gathered.files > 0);
    let scratch = Scratch::new("live");
    let path = scratch.0.join("live.tar");
    fs::write(&path, &bytes).expect("write");
    let again = load(&MachineSource::Path(path)).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(again.machine.nodes.len(), live.machine.nodes.len());
    assert_eq!(again.machine.page_size, live.machine.page_size);
    assert_eq!(again.machine.caches, live.machine.caches);
}

#[test]
fn a_full_disk_is_reported() {
    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::Error::from(std::io::ErrorKind::StorageFull))
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let error = gather(&sound(), Bytes(4096), &mut Full).expect_err("full").to_string();
    assert!(error.contains("no storage space"), "{error}");
}

#[test]
fn sources_by_name() {
    assert_eq!(MachineSource::parse("live"), MachineSource::Live);
    assert_eq!(MachineSource::parse("preset:lab-cxl").label(), "preset:lab-cxl");
    assert_eq!(MachineSource::parse("a.toml"), MachineSource::Path("a.toml".into()));
    assert_eq!(
        MachineSource::parse_machine("lab-cxl"),
        MachineSource::Preset("lab-cxl".to_owned())
    );
    assert_eq!(MachineSource::parse_machine("./lab-cxl"), MachineSource::Path("./lab-cxl".into()));
}
