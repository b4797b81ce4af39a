//! The control loop and its five ports: [`Clock`], [`Tracker`], [`Target`], [`Mover`], [`Journal`].
//! Live and simulated are two assemblies of the same engine. Makes no system call.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod account;
pub mod aim;
mod asking;
mod config;
mod digest;
mod engine;
mod glance;
pub mod journal;
pub mod large;
mod ports;
mod watch;
pub mod written;

pub use config::{Config, EngineParts};
pub use engine::{Engine, StepReport, Stop};
pub use terrace_policy::heat::{Evenness, PageLooks, PageWrites, Sighting, Skim};

pub use ports::{
    Ask, Clock, Journal, JournalError, Mapping, MappingKind, MoveFailure, MoveLimits, MoveOutcome,
    Mover, Observation, Target, TargetChange, TargetError, TrackError, Tracker, TrackerInfo,
};
