//! The control loop and its five ports: [`Clock`], [`Tracker`], [`Target`], [`Mover`], [`Journal`].
//! Live and simulated are two assemblies of the same engine. Makes no system call.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod account;
mod config;
mod digest;
mod engine;
pub mod journal;
mod ports;
mod quick_scan;
mod trackers;
mod tuning;
mod write_schedule;

pub use config::{Config, EngineParts};
pub use engine::{Engine, StepReport, StopReason};
pub use terrace_policy::heat::{
    PageEvidence, PageSamples, PageWrites, Prescan, RangeObservation, TouchEvenness,
};
pub use tuning::EngineTuning;
pub use write_schedule::WRITE_FAULT;

pub use ports::{
    Clock, Journal, JournalError, Mapping, MappingKind, MoveFailure, MoveLimits, MoveOutcome,
    Mover, Observation, SampleRequest, SpotCheck, Target, TargetChange, TargetError, TrackError,
    Tracker, TrackerInfo,
};
