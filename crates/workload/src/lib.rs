//! Room `workload` of Terrace; see ARCHITECTURE.md.
