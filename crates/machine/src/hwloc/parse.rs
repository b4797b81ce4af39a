//! The XML itself: elements to plain records, with limits on everything.

use crate::error::{shorten, XmlProblem};
use crate::lists::parse_mask;
use crate::validate::MAX_CPU;
use quick_xml::events::{BytesStart, Event};
use quick_xml::Reader;
use std::collections::BTreeMap;

/// Elements nested in each other. PCI bridges nest deepest, eight in the deepest machine known.
const MAX_DEPTH: usize = 256;
/// Elements in all.
const MAX_ELEMENTS: usize = 2_000_000;
/// Attributes of one element; hwloc writes at most 20.
const MAX_ATTRIBUTES: usize = 64;
/// NUMA nodes: kernels have up to 1024 (`NODES_SHIFT`, `arch/x86/Kconfig`).
pub(super) const MAX_NODES: usize = 1024;
/// Objects that are kept: some 25,000 on a machine of 8192 CPUs.
const MAX_OBJECTS: usize = 131_072;
/// CPUs in all sets together: a short text can name very many.
const MAX_SET_CPUS: usize = 16 << 20;
/// Values of memory attributes, and entries of the distance table.
const MAX_VALUES: usize = 1 << 20;

/// What is wrong, and where in the text.
pub(super) type ParseError = (usize, XmlProblem);

/// What of the XML matters here.
#[derive(Debug, Default)]
pub(super) struct Topology {
    pub objects: Vec<Object>,
    /// Which of `objects` are NUMA nodes.
    pub numas: Vec<usize>,
    /// Values by attribute; only those of [`ATTRIBUTES`].
    pub values: BTreeMap<&'static str, Vec<Value>>,
    /// `NUMALatency` distances: node numbers, then the square of values.
    pub distances: Option<(Indexing, Vec<u64>, Vec<u64>)>,
    /// Info of the topology (v3) or of the root object (v2).
    pub infos: BTreeMap<String, String>,
}

/// How a distance table names its nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Indexing {
    Os,
    Gp,
    /// By their place among the NUMA nodes of the text, as version 1 does.
    Order,
}

/// An object that matters: machine, package, group, NUMA node, cache or OS device.
#[derive(Debug, Default, Clone)]
pub(super) struct Object {
    pub kind: String,
    pub gp_index: Option<u64>,
    pub os_index: Option<u64>,
    pub cpuset: Vec<u32>,
    /// Bytes, where stated.
    pub local_memory: Option<u64>,
    /// Bytes of its kinds of pages together.
    pub pages: u64,
    pub subtype: String,
    pub name: String,
    pub cache: [u64; 4],
    pub infos: BTreeMap<String, String>,
}

/// The memory attributes that are read, those later in the list more exact.
pub(super) const ATTRIBUTES: [&str; 6] =
    ["Bandwidth", "Latency", "ReadBandwidth", "WriteBandwidth", "ReadLatency", "WriteLatency"];

/// One value of a memory attribute.
#[derive(Debug)]
pub(super) struct Value {
    pub target: u64,
    pub value: u64,
    pub initiator: Initiator,
}

/// Who accesses.
#[derive(Debug)]
pub(super) enum Initiator {
    None,
    Cpus(Vec<u32>),
    Object(u64),
}

#[derive(Default)]
struct Parser {
    topology: Topology,
    /// For each open element: its name, and its object where it is one that matters.
    open: Vec<(String, Option<usize>)>,
    elements: usize,
    /// The attribute being read, where it is one of [`ATTRIBUTES`].
    attribute: Option<&'static str>,
    values: usize,
    set_cpus: usize,
    /// Distance table being read: wanted or not, indexing, nodes, values.
    table: Option<(bool, Indexing, Vec<u64>, Vec<u64>)>,
    /// What a unit of version 1's relative distances is, within such a table.
    base: f64,
}

/// Reads the text.
pub(super) fn parse(text: &str) -> Result<Topology, ParseError> {
    let mut reader = Reader::from_str(text);
    let mut parser = Parser::default();
    let mut seen_root = false;
    loop {
        let offset = reader.buffer_position() as usize;
        let event = reader
            .read_event()
            .map_err(|e| (offset, XmlProblem::Malformed(shorten(&e.to_string()))))?;
        let result = match event {
            Event::Start(start) => parser.start(&start, &mut seen_root),
            Event::Empty(start) => parser.start(&start, &mut seen_root).map(|()| parser.end()),
            Event::End(_) => {
                parser.end();
                Ok(())
            }
            Event::Text(text) => match text.decode() {
                Ok(text) => parser.text(&text),
                Err(error) => Err(XmlProblem::Malformed(shorten(&error.to_string()))),
            },
            Event::DocType(doctype) => {
                // An internal subset could declare entities; hwloc's own DOCTYPE has none.
                if doctype.contains(&b'[') || doctype.windows(6).any(|w| w == b"ENTITY") {
                    Err(XmlProblem::Entities)
                } else {
                    Ok(())
                }
            }
            Event::GeneralRef(_) => Err(XmlProblem::Entities),
            Event::Eof => break,
            Event::CData(_) | Event::Comment(_) | Event::Decl(_) | Event::PI(_) => Ok(()),
        };
        result.map_err(|problem| (offset, problem))?;
    }
    if !seen_root {
        return Err((text.len(), XmlProblem::NotTopology("nothing".to_owned())));
    }
    if let Some((name, _)) = parser.open.last() {
        let why = format!("<{name}> is never closed");
        return Err((text.len(), XmlProblem::Malformed(shorten(&why))));
    }
    Ok(parser.topology)
}

impl Parser {
    fn start(&mut self, start: &BytesStart<'_>, seen_root: &mut bool) -> Result<(), XmlProblem> {
        let name = text_of(start.name().as_ref())?;
        self.elements += 1;
        if self.elements > MAX_ELEMENTS {
            return Err(XmlProblem::TooMany { what: "elements", limit: MAX_ELEMENTS });
        }
        if self.open.len() >= MAX_DEPTH {
            return Err(XmlProblem::TooDeep(MAX_DEPTH));
        }
        let attributes = Attributes::read(&name, start)?;
        if !*seen_root {
            *seen_root = true;
            root(&attributes)?;
        } else if self.open.is_empty() {
            return Err(XmlProblem::Malformed("a second root element".to_owned()));
        }
        let object = match name.as_str() {
            "object" => self.object(&attributes)?,
            "info" => {
                self.info(&attributes);
                None
            }
            "memattr" => {
                let name = attributes.text("name");
                self.attribute = ATTRIBUTES.into_iter().find(|known| Some(*known) == name);
                None
            }
            "memattr_value" => {
                self.value(&attributes)?;
                None
            }
            "distances2" => {
                self.table(&attributes);
                None
            }
            "distances" => {
                self.relative_table(&attributes);
                None
            }
            "latency" => {
                self.relative(&attributes);
                None
            }
            "page_type" => {
                self.pages(&attributes);
                None
            }
            _ => None,
        };
        self.open.push((name, object));
        Ok(())
    }

    fn end(&mut self) {
        let Some((name, _)) = self.open.pop() else {
            return;
        };
        if name == "distances2" || name == "distances" {
            if let Some((true, indexing, nodes, values)) = self.table.take() {
                self.topology.distances.get_or_insert((indexing, nodes, values));
            }
        }
    }

    fn object(&mut self, attributes: &Attributes) -> Result<Option<usize>, XmlProblem> {
        let kind = match attributes.text("type").unwrap_or_default() {
            // Until version 1.10.
            "Socket" => "Package",
            kind => kind,
        };
        let kept = matches!(kind, "Machine" | "Package" | "Group" | "NUMANode" | "OSDev")
            || kind.ends_with("Cache");
        if !kept {
            return Ok(None);
        }
        let index = self.topology.objects.len();
        if index >= MAX_OBJECTS {
            return Err(XmlProblem::TooMany { what: "objects", limit: MAX_OBJECTS });
        }
        if kind == "NUMANode" {
            if self.topology.numas.len() >= MAX_NODES {
                return Err(XmlProblem::TooMany { what: "NUMA nodes", limit: MAX_NODES });
            }
            if attributes.text("os_index").is_none() {
                let element = "object NUMANode".to_owned();
                return Err(XmlProblem::MissingAttribute { element, attribute: "os_index" });
            }
            self.topology.numas.push(index);
        }
        let cpuset = self.cpus(attributes, "cpuset")?.unwrap_or_default();
        let number = |key| attributes.number(key).map(Option::unwrap_or_default);
        // Associativity is -1 where a cache is fully associative.
        let ways = match attributes.text("cache_associativity") {
            Some("-1") => 0,
            _ => number("cache_associativity")?,
        };
        // Version 1 has one kind of cache, whose type 2 holds instructions.
        let is_cache = kind.ends_with("Cache") && attributes.text("cache_type") != Some("2");
        self.topology.objects.push(Object {
            kind: kind.to_owned(),
            gp_index: attributes.number("gp_index")?,
            os_index: attributes.number("os_index")?,
            cpuset,
            local_memory: attributes.number("local_memory")?,
            pages: 0,
            subtype: attributes.text("subtype").unwrap_or_default().to_owned(),
            name: attributes.text("name").unwrap_or_default().to_owned(),
            // PCI bridges have a depth as well, but are not kept.
            cache: if is_cache {
                [number("depth")?, number("cache_size")?, number("cache_linesize")?, ways]
            } else {
                [0; 4]
            },
            infos: BTreeMap::new(),
        });
        Ok(Some(index))
    }

    fn cpus(&mut self, attributes: &Attributes, key: &str) -> Result<Option<Vec<u32>>, XmlProblem> {
        let cpus = attributes.cpus(key)?;
        self.set_cpus += cpus.as_ref().map_or(0, Vec::len);
        if self.set_cpus > MAX_SET_CPUS {
            return Err(XmlProblem::TooMany {
                what: "CPUs in all sets together",
                limit: MAX_SET_CPUS,
            });
        }
        Ok(cpus)
    }

    fn info(&mut self, attributes: &Attributes) {
        let (Some(name), Some(value)) = (attributes.text("name"), attributes.text("value")) else {
            return;
        };
        let infos = match self.open.last() {
            Some((parent, _)) if parent == "topology" => &mut self.topology.infos,
            Some((_, Some(object))) => {
                let object = &mut self.topology.objects[*object];
                if object.kind == "Machine" {
                    &mut self.topology.infos
                } else {
                    &mut object.infos
                }
            }
            _ => return,
        };
        if infos.len() < 1024 {
            infos.entry(name.to_owned()).or_insert_with(|| value.to_owned());
        }
    }

    fn value(&mut self, attributes: &Attributes) -> Result<(), XmlProblem> {
        // Attributes of the user's own, and of objects that are no memory, say nothing here.
        let Some(attribute) = self.attribute else {
            return Ok(());
        };
        if attributes.text("target_obj_type").is_some_and(|t| t != "NUMANode") {
            return Ok(());
        }
        let element = || "memattr_value".to_owned();
        let need = |key: &'static str| {
            attributes
                .number(key)?
                .ok_or_else(|| XmlProblem::MissingAttribute { element: element(), attribute: key })
        };
        let initiator = match self.cpus(attributes, "initiator_cpuset")? {
            Some(cpus) => Initiator::Cpus(cpus),
            None => match attributes.number("initiator_obj_gp_index")? {
                Some(object) => Initiator::Object(object),
                None => Initiator::None,
            },
        };
        self.values += 1;
        if self.values > MAX_VALUES {
            return Err(XmlProblem::TooMany { what: "memory attribute values", limit: MAX_VALUES });
        }
        let value =
            Value { target: need("target_obj_gp_index")?, value: need("value")?, initiator };
        self.topology.values.entry(attribute).or_default().push(value);
        Ok(())
    }

    fn table(&mut self, attributes: &Attributes) {
        // Bits of `hwloc_distances_kind_e`: 1 from the OS, 4 means latency.
        let from_os =
            attributes.text("kind").and_then(|k| k.parse().ok()).is_some_and(|k: u64| k & 5 == 5);
        let wanted = from_os
            && attributes.text("type") == Some("NUMANode")
            && attributes.text("name").is_none_or(|n| n == "NUMALatency");
        let indexing =
            if attributes.text("indexing") == Some("gp") { Indexing::Gp } else { Indexing::Os };
        self.table = Some((wanted, indexing, Vec::new(), Vec::new()));
    }

    /// A table of version 1: relative to a base, row by row. Which objects it is about is reported
    /// by depth alone; that they are the NUMA nodes, by their number, when the table is used.
    fn relative_table(&mut self, attributes: &Attributes) {
        let number = |key: &str| attributes.text(key).and_then(|text| text.parse::<f64>().ok());
        let base = number("latency_base").filter(|base| base.is_finite() && *base > 0.0);
        let count = number("nbobjs").filter(|n| (1.0..=MAX_NODES as f64).contains(n));
        self.base = base.unwrap_or(0.0);
        let order = (0..count.unwrap_or(0.0) as u64).collect();
        self.table = Some((base.is_some(), Indexing::Order, order, Vec::new()));
    }

    fn relative(&mut self, attributes: &Attributes) {
        let Some((true, Indexing::Order, _, values)) = &mut self.table else { return };
        let value = attributes.text("value").and_then(|text| text.parse::<f64>().ok());
        // What is not known is 0, which is taken for that. The cast saturates.
        if values.len() < MAX_VALUES {
            values.push((value.unwrap_or(0.0) * self.base).round() as u64);
        }
    }

    /// A kind of pages of a node, which is all that some tools state of its memory.
    fn pages(&mut self, attributes: &Attributes) {
        let number = |key: &str| attributes.text(key).and_then(|text| text.parse::<u64>().ok());
        let Some((_, Some(object))) = self.open.last() else { return };
        let object = &mut self.topology.objects[*object];
        if let (Some(size), Some(count)) = (number("size"), number("count")) {
            object.pages = object.pages.saturating_add(size.saturating_mul(count));
        }
    }

    fn text(&mut self, text: &str) -> Result<(), XmlProblem> {
        let Some((true, _, nodes, values)) = &mut self.table else {
            return Ok(());
        };
        let into = match self.open.last() {
            Some((name, _)) if name == "indexes" => nodes,
            Some((name, _)) if name == "u64values" => values,
            _ => return Ok(()),
        };
        for word in text.split_ascii_whitespace() {
            if into.len() >= MAX_VALUES {
                return Err(XmlProblem::TooMany { what: "distances", limit: MAX_VALUES });
            }
            into.push(word.parse().map_err(|_| XmlProblem::BadAttribute {
                element: "distances2".to_owned(),
                attribute: "value".to_owned(),
                found: shorten(word),
                expected: "whole numbers",
            })?);
        }
        Ok(())
    }
}

fn root(attributes: &Attributes) -> Result<(), XmlProblem> {
    if attributes.element != "topology" {
        return Err(XmlProblem::NotTopology(shorten(&attributes.element)));
    }
    // hwloc 1 wrote no version.
    let version = attributes.text("version").unwrap_or("1");
    match version.split('.').next() {
        Some("1" | "2" | "3") => Ok(()),
        _ => Err(XmlProblem::Version(shorten(version))),
    }
}

struct Attributes {
    element: String,
    values: BTreeMap<String, String>,
}

impl Attributes {
    fn read(element: &str, start: &BytesStart<'_>) -> Result<Self, XmlProblem> {
        let mut values = BTreeMap::new();
        // quick-xml's own check for doubles takes quadratic time, so it is off and done below.
        for attribute in start.attributes().with_checks(false) {
            let malformed =
                |e: &dyn std::fmt::Display| XmlProblem::Malformed(shorten(&e.to_string()));
            let attribute = attribute.map_err(|e| malformed(&e))?;
            if values.len() >= MAX_ATTRIBUTES {
                return Err(XmlProblem::TooMany { what: "attributes", limit: MAX_ATTRIBUTES });
            }
            let key = text_of(attribute.key.as_ref())?;
            // Only the five entities of XML itself and character references are known here.
            let value = attribute.unescape_value().map_err(|e| malformed(&e))?.into_owned();
            if values.insert(key.clone(), value).is_some() {
                return Err(malformed(&format!("attribute {key} given twice")));
            }
        }
        Ok(Self { element: element.to_owned(), values })
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str)
    }

    fn number(&self, key: &str) -> Result<Option<u64>, XmlProblem> {
        let Some(text) = self.text(key) else {
            return Ok(None);
        };
        text.trim().parse().map(Some).map_err(|_| self.bad(key, text, "a whole number"))
    }

    fn cpus(&self, key: &str) -> Result<Option<Vec<u32>>, XmlProblem> {
        let Some(text) = self.text(key) else {
            return Ok(None);
        };
        let expected = "a mask such as 0x0000000f, of CPUs up to 8191";
        parse_mask(text, MAX_CPU.0).map(Some).map_err(|_| self.bad(key, text, expected))
    }

    fn bad(&self, key: &str, found: &str, expected: &'static str) -> XmlProblem {
        let element = shorten(&self.element);
        XmlProblem::BadAttribute {
            element,
            attribute: shorten(key),
            found: format!("\"{}\"", shorten(found)),
            expected,
        }
    }
}

fn text_of(bytes: &[u8]) -> Result<String, XmlProblem> {
    // The input was text already, so this cannot fail.
    std::str::from_utf8(bytes)
        .map(str::to_owned)
        .map_err(|_| XmlProblem::Malformed("not UTF-8".to_owned()))
}
