//! A graph for people: as a tree of text, for Graphviz, for Mermaid.
//!
//! All forms are linear in nodes and edges, whatever the shape, and print the same graph the same way.

use std::{borrow::Cow, fmt};

use super::{DependencyGraph, GiveUpReason, Group, Node};
use crate::inventory::Requirement;

/// `text` without characters that would move a terminal's cursor or break a line.
pub(super) fn printable(text: &str) -> Cow<'_, str> {
    if text.chars().any(char::is_control) {
        return text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect();
    }
    text.into()
}

impl DependencyGraph {
    /// What waits for what at deletion, as indented text: an object goes after everything that is indented below it.
    ///
    /// Each object is shown in full once, in the first place it belongs; elsewhere it is referred to. Deep chains stop
    /// indenting and show their depth as a number. Preferred edges that were given up, and objects outside of the
    /// set, follow below.
    #[must_use]
    pub fn tree(&self) -> Tree<'_> {
        Tree(self)
    }

    /// The graph in Graphviz' language. Arrows lead to what is depended on; preferred edges are dashed.
    #[must_use]
    pub fn dot(&self) -> Dot<'_> {
        Dot(self)
    }

    /// The graph as a Mermaid flow chart. Arrows lead to what is depended on; preferred edges are dotted.
    #[must_use]
    pub fn mermaid(&self) -> Mermaid<'_> {
        Mermaid(self)
    }

    /// Why `from` depends on `to`, in few words: each rule and declarer once.
    fn why(&self, from: Node, to: Node) -> String {
        let mut names: Vec<&str> = self
            .requirements(from, to)
            .map(|requirement| match requirement {
                Requirement::Required { declared_by } => declared_by.as_str(),
                Requirement::Preferred { rule, .. } => rule.as_str(),
            })
            .collect();
        names.dedup();
        printable(&names.join(", ")).into_owned()
    }

    // The dependents of a group outside of it, each with the member it depends on first.
    fn waited_for(&self, group: Group) -> Vec<(Node, Node)> {
        let members = self.members(group).iter();
        let mut below: Vec<(Node, Node)> = members
            .flat_map(|to| self.dependents(*to).iter().map(move |from| (*from, *to)))
            .filter(|(from, _)| self.group(*from) != group)
            .collect();
        below.sort_unstable();
        below.dedup_by_key(|(from, _)| self.group(*from));
        below
    }

    fn holds_back(&self, group: Group) -> bool {
        let mut dependents = self.members(group).iter().flat_map(|to| self.dependents(*to));
        dependents.any(|from| self.group(*from) != group)
    }
}

/// [`DependencyGraph::tree`].
#[derive(Clone, Copy, Debug)]
pub struct Tree<'a>(&'a DependencyGraph);

/// A group whose dependents are being printed.
struct Frame {
    below: std::vec::IntoIter<(Node, Node)>,
    // How much of the indentation belongs to the level above.
    indent: usize,
}

impl Tree<'_> {
    /// Deeper levels are not indented further: the size must not grow with the square of the depth.
    const INDENTED: usize = 20;

    fn object(&self, f: &mut fmt::Formatter<'_>, group: Group) -> fmt::Result {
        match self.0.members(group) {
            [single] => write!(f, "{}", self.0.id(*single)),
            members => {
                write!(f, "cycle of {}, deleted together: ", members.len())?;
                for (i, member) in members.iter().enumerate() {
                    write!(f, "{}{}", if i == 0 { "" } else { ", " }, self.0.id(*member))?;
                }
                Ok(())
            }
        }
    }

    fn root(&self, f: &mut fmt::Formatter<'_>, root: Group, shown: &mut [bool]) -> fmt::Result {
        let graph = self.0;
        self.object(f, root)?;
        writeln!(f)?;
        let mut indent = String::new();
        let mut stack = vec![Frame { below: graph.waited_for(root).into_iter(), indent: 0 }];
        while let Some(frame) = stack.last_mut() {
            let Some((from, to)) = frame.below.next() else {
                indent.truncate(frame.indent);
                stack.pop();
                continue;
            };
            let last = frame.below.as_slice().is_empty();
            let depth = stack.len();
            write!(f, "{indent}{}", if last { "└── " } else { "├── " })?;
            if depth > Self::INDENTED {
                write!(f, "[level {depth}] ")?;
            }
            let group = graph.group(from);
            let first = !std::mem::replace(&mut shown[group.index()], true);
            if first {
                self.object(f, group)?;
            } else {
                write!(f, "{}", graph.id(from))?;
            }
            write!(f, "  ({})", graph.why(from, to))?;
            if !first && graph.holds_back(group) {
                write!(f, ", see above")?;
            }
            writeln!(f)?;
            if first {
                let kept = indent.len();
                if depth < Self::INDENTED {
                    indent.push_str(if last { "    " } else { "│   " });
                }
                stack.push(Frame { below: graph.waited_for(group).into_iter(), indent: kept });
            }
        }
        Ok(())
    }
}

impl fmt::Display for Tree<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let graph = self.0;
        let mut shown = vec![false; graph.groups()];
        for node in graph.nodes() {
            let group = graph.group(node);
            if graph.height(node) == 0 && !std::mem::replace(&mut shown[group.index()], true) {
                self.root(f, group, &mut shown)?;
            }
        }
        if !graph.given_up().is_empty() {
            writeln!(f, "\ngiven up:")?;
        }
        for edge in graph.given_up() {
            write!(f, "  {} on {}", graph.id(edge.from), graph.id(edge.to))?;
            if let Requirement::Preferred { rule, evidence, .. } = &edge.requirement {
                write!(f, "  ({}: {})", printable(rule), printable(evidence))?;
            }
            match &edge.reason {
                GiveUpReason::ClosesCycle { back } => {
                    write!(f, ", because {} depends on {}", graph.id(edge.to), graph.id(edge.from))?;
                    match back.get(1).filter(|next| **next != edge.from) {
                        None => writeln!(f)?,
                        Some(next) => writeln!(f, " through {}", graph.id(*next))?,
                    }
                }
                GiveUpReason::Waived { by } => writeln!(f, ", waived by {}", printable(by))?,
            }
        }
        if !graph.externals().is_empty() {
            writeln!(f, "\noutside of the set:")?;
        }
        for external in graph.externals() {
            match &external.id {
                Some(id) => write!(f, "  {id}")?,
                None => write!(f, "  object {}", external.stable)?,
            }
            write!(f, ", needed by {}", graph.id(external.needed_by))?;
            match &external.waived_by {
                Some(by) => writeln!(f, ", waived by {}", printable(by))?,
                None => writeln!(f)?,
            }
        }
        Ok(())
    }
}

/// [`DependencyGraph::dot`].
#[derive(Clone, Copy, Debug)]
pub struct Dot<'a>(&'a DependencyGraph);

/// A double-quoted string of Graphviz' language.
fn dot_string(text: &str) -> String {
    format!("\"{}\"", printable(text).replace('\\', "\\\\").replace('"', "\\\""))
}

impl fmt::Display for Dot<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let graph = self.0;
        writeln!(f, "digraph dependencies {{\n  node [shape=box];")?;
        for group in graph.cycles() {
            write!(f, "  subgraph cluster_{} {{ label=\"deleted together\";", group.index())?;
            for member in graph.members(group) {
                write!(f, " n{};", member.index())?;
            }
            writeln!(f, " }}")?;
        }
        for node in graph.nodes() {
            writeln!(f, "  n{} [label={}];", node.index(), dot_string(&graph.id(node).to_string()))?;
        }
        for (from, to) in graph.pairs() {
            let style = if graph.requires(from, to) { "solid" } else { "dashed" };
            let why = dot_string(&graph.why(from, to));
            writeln!(f, "  n{} -> n{} [style={style}, label={why}];", from.index(), to.index())?;
        }
        writeln!(f, "}}")
    }
}

/// [`DependencyGraph::mermaid`].
#[derive(Clone, Copy, Debug)]
pub struct Mermaid<'a>(&'a DependencyGraph);

/// The text of a quoted Mermaid label, where `#…;` stands for a character.
fn mermaid_text(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in printable(text).chars() {
        match c {
            '"' | '#' | ';' | '<' | '>' | '&' | '|' | '`' | '\\' => escaped.push_str(&format!("#{};", u32::from(c))),
            _ => escaped.push(c),
        }
    }
    escaped
}

impl fmt::Display for Mermaid<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let graph = self.0;
        writeln!(f, "flowchart TD")?;
        for node in graph.nodes() {
            writeln!(f, "  n{}[\"{}\"]", node.index(), mermaid_text(&graph.id(node).to_string()))?;
        }
        for group in graph.cycles() {
            writeln!(f, "  subgraph g{}[\"deleted together\"]", group.index())?;
            for member in graph.members(group) {
                writeln!(f, "    n{}", member.index())?;
            }
            writeln!(f, "  end")?;
        }
        for (from, to) in graph.pairs() {
            let arrow = if graph.requires(from, to) { "-->" } else { "-.->" };
            let why = mermaid_text(&graph.why(from, to));
            writeln!(f, "  n{} {arrow}|\"{why}\"| n{}", from.index(), to.index())?;
        }
        Ok(())
    }
}

impl DependencyGraph {
    /// The groups of more than one node.
    fn cycles(&self) -> impl Iterator<Item = Group> + '_ {
        (0..self.groups()).map(Group::at).filter(|group| self.members(*group).len() > 1)
    }

    fn pairs(&self) -> impl Iterator<Item = (Node, Node)> + '_ {
        self.nodes().flat_map(|from| self.dependencies(from).iter().map(move |to| (from, *to)))
    }
}
