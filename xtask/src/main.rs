//! Rules of the house, executable: `cargo xtask tidy`; commands of the documents: `cargo xtask
//! commands PREFIX`.
#![forbid(unsafe_code)]

mod commands;
mod rules;
mod tree;

use std::process::ExitCode;
use tree::Tree;

fn main() -> ExitCode {
    let command = std::env::args().nth(1);
    match command.as_deref() {
        Some("tidy") => tidy(),
        Some("commands") => commands::commands(std::env::args().nth(2)),
        _ => {
            eprintln!("usage: cargo xtask tidy | commands PREFIX");
            ExitCode::from(2)
        }
    }
}

fn tidy() -> ExitCode {
    let tree = match Tree::of_repository() {
        Ok(tree) => tree,
        Err(why) => {
            eprintln!("tidy: {why}");
            return ExitCode::FAILURE;
        }
    };
    let mut broken = 0;
    for (name, rule) in rules::ALL {
        for finding in rule(&tree) {
            if finding.fails {
                broken += 1;
                println!("{}: {} [{name}]", finding.at, finding.what);
            } else {
                println!("note: {}: {} [{name}]", finding.at, finding.what);
            }
        }
    }
    if broken > 0 {
        println!("tidy: {broken} broken rules in {} files", tree.len());
        ExitCode::FAILURE
    } else {
        println!("tidy: {} rules hold over {} files", rules::ALL.len(), tree.len());
        ExitCode::SUCCESS
    }
}
