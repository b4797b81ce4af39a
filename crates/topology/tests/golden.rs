//! `tiers` of every fixture and of the outside data, against golden files checked by hand.

mod common;

use common::{fixture, golden, outside, Scratch};
use std::path::Path;
use std::process::Command;
use terrace_machine::{
    explain_with, preset_names, rank, render_text, RankAttribute, Survey, TiersReport,
};
use terrace_topology::{load, MachineSource};
use terrace_types::NodeId;

fn read(path: &Path) -> Survey {
    load(&MachineSource::Path(path.to_path_buf())).unwrap_or_else(|error| panic!("{error}"))
}

/// JSON of `tiers --by bandwidth` as each of these nodes sees it.
fn json(survey: &Survey, source: &str, initiators: &[Option<u16>]) -> String {
    let mut out = String::new();
    for initiator in initiators {
        let ranking = rank(&survey.machine, RankAttribute::Bandwidth, initiator.map(NodeId))
            .unwrap_or_else(|error| panic!("{error}"));
        let report = TiersReport::new(&survey.machine, &ranking, source);
        out += &serde_json::to_string_pretty(&report).expect("JSON");
        out.push('\n');
    }
    out
}

/// The table, by both attributes, and what `doctor` would say.
fn text(survey: &Survey, source: &str) -> String {
    let mut out = String::new();
    for by in [RankAttribute::Bandwidth, RankAttribute::Latency] {
        let ranking = rank(&survey.machine, by, None).unwrap_or_else(|error| panic!("{error}"));
        out += &render_text(&survey.machine, &ranking, source);
        out.push('\n');
    }
    for finding in explain_with(&survey.machine, &survey.surroundings) {
        let command = finding.command.unwrap_or_else(|| "-".to_owned());
        out += &format!(
            "{:?} {:?}: {}\n    {command}\n",
            finding.severity, finding.topic, finding.text
        );
    }
    out
}

fn check(name: &str, survey: &Survey, source: &str, initiators: &[Option<u16>]) {
    golden(&format!("{name}.json"), &json(survey, source, initiators));
    golden(&format!("{name}.txt"), &text(survey, source));
}

#[test]
fn gathered_trees() {
    let all: [(&str, &[Option<u16>]); 5] = [
        ("lab-cxl", &[None]),
        ("cxl-region", &[None, Some(1)]),
        ("no-hmat", &[None]),
        ("no-numa", &[None]),
        ("snc4-hbm", &[None, Some(3)]),
    ];
    for (name, initiators) in all {
        let survey = read(&fixture(&format!("sysfs/{name}")));
        assert_eq!(survey.machine.name, name);
        check(&format!("sysfs-{name}"), &survey, name, initiators);
    }
}

/// The lab writes bandwidths into its HMAT in whole units of this many bytes a second, rounded
/// down.
const HMAT_UNIT: f64 = (64 << 20) as f64;

/// As `terrace gather` made them in the lab's guests: the machine files that these came from are
/// the presets of the same names, so that what firmware and kernel make of a figure is seen.
#[test]
fn trees_gathered_in_the_lab() {
    for preset in ["lab-cxl", "lab-hbm", "lab-dcpmm"] {
        let name = format!("gathered-{preset}");
        let survey = read(&fixture(&format!("sysfs/{name}")));
        assert_eq!(survey.machine.name, name, "the guest has no host name");
        check(&format!("sysfs-{name}"), &survey, &name, &[None]);
        let wanted = terrace_machine::preset(preset).expect("a preset");
        let nearest = |l: &&terrace_machine::Link| {
            let others = wanted.links.iter().filter(|o| o.target == l.target);
            others.map(|o| o.distance).min() == Some(l.distance)
        };
        // sysfs has figures for the nearest CPUs of each node alone.
        for link in wanted.links.iter().filter(nearest) {
            let got = survey
                .machine
                .link(link.initiator, link.target)
                .unwrap_or_else(|| panic!("{name}: {link:?}"));
            let latency = |l: &terrace_machine::Link| l.read_latency.map(|f| f.value.get());
            assert_eq!(latency(got), latency(link), "{name}: {link:?}");
            let rate = |f: Option<terrace_machine::Figure<terrace_types::BytesPerSec>>| {
                f.map(|f| f.value.get() as f64)
            };
            for (got, want) in [
                (got.read_bandwidth, link.read_bandwidth),
                (got.write_bandwidth, link.write_bandwidth),
            ] {
                let off = rate(got).zip(rate(want)).map(|(got, want)| want - got);
                assert!(
                    off.is_some_and(|off| (0.0..HMAT_UNIT).contains(&off)),
                    "{name}: {link:?}: {got:?}"
                );
            }
        }
    }
}

#[test]
fn machine_files() {
    for name in ["minimal", "probed", "far-first"] {
        let survey = read(&fixture(&format!("machines/{name}.toml")));
        assert_eq!(survey.machine.name, name);
        check(&format!("machine-{name}"), &survey, name, &[None]);
    }
}

#[test]
fn hwloc_xml_of_our_own() {
    let survey = read(&fixture("machines/hbm-and-cxl.xml"));
    check("hwloc-hbm-and-cxl", &survey, "hbm-and-cxl.xml", &[None, Some(1)]);
}

#[test]
fn presets() {
    let mut out = String::new();
    for name in preset_names() {
        let source = MachineSource::Preset(name.to_owned());
        let survey = load(&source).unwrap_or_else(|error| panic!("{error}"));
        let ranking = rank(&survey.machine, RankAttribute::Bandwidth, None).expect("ranking");
        out += &render_text(&survey.machine, &ranking, &source.label());
        out.push('\n');
    }
    golden("presets.txt", &out);
}

#[test]
fn hwloc_memory_attributes() {
    let Some(path) = outside("hwloc/8intel64-4n2t-memattrs.xml") else {
        return;
    };
    let survey = read(&path);
    // By hand: four nodes of 1 GiB with two CPUs each; the one Bandwidth is 20 MiB/s to node 1 from
    // CPUs 0-7, so all nodes see it; foobar, barnoinit and coincoin are attributes of the user's
    // own. Backend is Synthetic: no HMAT.
    check("hwloc-memattrs", &survey, "memattrs", &[None, Some(2)]);
}

#[test]
fn hwloc_cxl_and_dax_in_both_versions() {
    let (v2, v3) = (outside("hwloc/cxlmem+dax.v2.xml"), outside("hwloc/cxlmem+dax.v3.xml"));
    let (Some(v2), Some(v3)) = (v2, v3) else {
        return;
    };
    let (v2, v3) = (read(&v2), read(&v3));
    // By hand: one node of 3061719040 bytes with CPUs 0-3 on package 0, no attributes, no
    // distances; dax0.0 of 1 GiB is set-aside memory not in use; four CXL devices: mem2 and mem3
    // 256 MiB volatile, mem0 persistent, mem1 both.
    assert_eq!(v2, v3);
    check("hwloc-cxl-dax", &v3, "cxl-dax", &[None]);
}

#[test]
fn hwloc_tree_with_separate_initiators() {
    let Some(path) = outside("hwloc/fakememinitiators-1np2c+1npp+gi.tar.bz2") else {
        return;
    };
    let scratch = Scratch::new("fakememinitiators");
    let unpacked = Command::new("tar").arg("xjf").arg(&path).arg("-C").arg(&scratch.0).status();
    if !unpacked.is_ok_and(|status| status.success()) {
        println!("skipped: tar or bzip2 is missing");
        return;
    }
    let survey = read(&scratch.0);
    // By hand, from access0, access1, distance and meminfo of each node: CPUs 0-7 in pairs on nodes
    // 0-3, which have no memory; node 4 has neither (a generic initiator); memory on 5-10. Class 0
    // of nodes 5-7 is node 4's, so the CPUs' figures are those of class 1: node 0 sees 5 (26 ns,
    // 131072 MiB/s) and 7 (77 ns, 78644 MiB/s), node 3 sees 9 and 10 the same; all others are known
    // by distance. 7 and 10 are persistent memory (under ndbus0, driver kmem).
    check("hwloc-fakememinitiators", &survey, "fakememinitiators", &[None, Some(3)]);
    let link = |from, to| survey.machine.link(NodeId(from), NodeId(to)).copied();
    let device = link(4, 5).and_then(|l| l.read_latency).map(|f| f.value.get());
    assert_eq!(device, Some(8), "the device keeps what class 0 says of it");
    assert_eq!(link(0, 6).and_then(|l| l.read_bandwidth), None);
}

#[test]
fn a_compressed_archive_says_how_to_unpack_it() {
    let Some(path) = outside("hwloc/fakememinitiators-1np2c+1npp+gi.tar.bz2") else {
        return;
    };
    let error = load(&MachineSource::Path(path)).expect_err("compressed").to_string();
    assert!(error.contains("bzip2") && error.contains("tar xf"), "{error}");
}
