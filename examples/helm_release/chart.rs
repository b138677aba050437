//! Rendering a chart-like folder: the `*.yaml` files in its `templates`. This is not Helm: a template is YAML, and inside of
//! its strings `{{ .Values.x }}`, `{{ .Release.Name }}` and `{{ .Release.Namespace }}` are replaced.
//!
//! Replaced after parsing, so that a value stays a string whatever is in it: whoever writes a release chooses values, and not
//! objects.

use std::{collections::BTreeMap, fs, io, path::Path};

use kube::api::DynamicObject;
use serde_json::Value;

#[derive(Debug)]
pub enum Error {
    Name(String),
    Io(io::Error),
    Manifest(String, String),
    Unknown(String),
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name(chart) => write!(f, "{chart:?} is not the name of a chart"),
            Self::Io(error) => write!(f, "the chart cannot be read: {error}"),
            Self::Manifest(file, problem) => write!(f, "template {file}: {problem}"),
            Self::Unknown(name) => write!(f, "a template asks for {name}, which is not given"),
        }
    }
}

impl std::error::Error for Error {}

/// What templates may ask for.
pub fn facts(name: &str, namespace: &str, values: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let values = values.iter().map(|(key, value)| (format!(".Values.{key}"), value.clone()));
    let release = [(".Release.Name", name), (".Release.Namespace", namespace)];
    values.chain(release.map(|(key, value)| (key.to_owned(), value.to_owned()))).collect()
}

/// The objects of a chart. One that cannot be rendered fails the whole, so that nothing is pruned by mistake.
pub fn render(charts: &Path, chart: &str, facts: &BTreeMap<String, String>) -> Result<Vec<DynamicObject>, Error> {
    if chart.is_empty() || !chart.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
        return Err(Error::Name(chart.to_owned()));
    }
    let entries = fs::read_dir(charts.join(chart).join("templates")).map_err(Error::Io)?;
    let mut paths = entries.map(|e| e.map(|e| e.path())).collect::<Result<Vec<_>, _>>().map_err(Error::Io)?;
    paths.sort();
    let mut objects = Vec::new();
    for path in paths.iter().filter(|path| path.extension().is_some_and(|e| e == "yaml")) {
        let problem = |problem: String| Error::Manifest(path.display().to_string(), problem);
        let text = fs::read_to_string(path).map_err(Error::Io)?;
        let documents: Vec<Value> = serde_saphyr::from_multiple(&text).map_err(|e| problem(e.to_string()))?;
        for mut document in documents.into_iter().filter(|d| !d.is_null()) {
            fill(&mut document, facts)?;
            objects.push(serde_json::from_value(document).map_err(|e| problem(e.to_string()))?);
        }
    }
    Ok(objects)
}

fn fill(value: &mut Value, facts: &BTreeMap<String, String>) -> Result<(), Error> {
    match value {
        Value::String(text) => *text = replace(text, facts)?,
        Value::Array(items) => items.iter_mut().try_for_each(|item| fill(item, facts))?,
        Value::Object(fields) => fields.values_mut().try_for_each(|field| fill(field, facts))?,
        _ => {}
    }
    Ok(())
}

fn replace(text: &str, facts: &BTreeMap<String, String>) -> Result<String, Error> {
    let (mut filled, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once("{{") {
        let Some((name, after)) = after.split_once("}}") else { break };
        filled += before;
        filled += facts.get(name.trim()).ok_or_else(|| Error::Unknown(name.trim().to_owned()))?;
        rest = after;
    }
    Ok(filled + rest)
}
