//! What `doctor` says of machines, and the command it gives.

use terrace_machine::{
    explain, explain_with, preset, DaxDevice, KernelTier, Machine, Severity, Surroundings, Topic,
};
use terrace_types::NodeId;

fn topics(machine: &Machine, surroundings: &Surroundings) -> Vec<(Severity, Topic)> {
    explain_with(machine, surroundings).iter().map(|f| (f.severity, f.topic)).collect()
}

fn tier(number: u32, nodes: &[u16]) -> KernelTier {
    KernelTier { number, nodes: nodes.iter().map(|n| NodeId(*n)).collect() }
}

#[test]
fn a_sound_machine_needs_nothing() {
    let machine = preset("lab-cxl").expect("preset");
    let surroundings = Surroundings {
        kernel_tiers: Some(vec![tier(4, &[0]), tier(84, &[1])]),
        ..Surroundings::default()
    };
    assert_eq!(
        topics(&machine, &surroundings),
        [(Severity::Fine, Topic::Tiers), (Severity::Fine, Topic::KernelTiers)]
    );
}

#[test]
fn one_tier_of_the_kernel_is_no_obstacle_but_said() {
    let machine = preset("lab-cxl").expect("preset");
    let surroundings =
        Surroundings { kernel_tiers: Some(vec![tier(4, &[0, 1])]), ..Surroundings::default() };
    let findings = explain_with(&machine, &surroundings);
    assert_eq!(findings[0].topic, Topic::OneKernelTier);
    assert!(findings[0].text.contains("memory_tier4 (0-1)"));
}

#[test]
fn set_aside_memory_gets_the_command_that_makes_it_memory() {
    let text = "[[node]]\nid = 0\ncpus = [0]\ncapacity = \"1 GiB\"\n";
    let machine = Machine::from_toml(text, "one").expect("machine");
    let device = DaxDevice {
        name: "dax0.0".to_owned(),
        size: None,
        target_node: Some(NodeId(1)),
        system_ram: Some(false),
        nature: Some("CXL".to_owned()),
    };
    let surroundings = Surroundings { dax: vec![device], ..Surroundings::default() };
    let findings = explain_with(&machine, &surroundings);
    let topics: Vec<Topic> = findings.iter().map(|f| f.topic).collect();
    assert_eq!(topics, [Topic::OneTier, Topic::UnusedDax]);
    let command = findings[1].command.as_deref();
    assert_eq!(command, Some("daxctl reconfigure-device --mode=system-ram dax0.0"));
}

#[test]
fn orders_that_differ_are_named() {
    let machine = preset("knl-flat").expect("preset");
    let findings = explain(&machine);
    let differ = findings.iter().find(|f| f.topic == Topic::OrdersDiffer).expect("finding");
    assert!(differ.text.contains("nodes 0 > 1"), "{}", differ.text);
    assert_eq!(differ.command.as_deref(), Some("terrace tiers --by latency"));
}

#[test]
fn a_machine_known_by_distance_is_a_guess() {
    let text = "[[node]]\nid = 0\ncpus = [0]\ncapacity = \"1 GiB\"\n[[node]]\nid = 1\ncapacity = \
        \"1 GiB\"\n\
                [[link]]\ninitiator = 0\ntarget = 0\ndistance = 10\n[[link]]\ninitiator = \
                0\ntarget = 1\ndistance = 20\n";
    let machine = Machine::from_toml(text, "two").expect("machine");
    let findings = explain(&machine);
    assert_eq!(findings[0].topic, Topic::NoFigures);
    assert_eq!(findings[0].severity, Severity::Obstacle);
    assert_eq!(findings[0].command.as_deref(), Some("terrace probe -o machine.toml"));
}
