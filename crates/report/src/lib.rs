//! Room `report` of Terrace; see ARCHITECTURE.md.
