//! What the API server says about itself: versions, groups, resources; plain and aggregated.

use serde_json::{Value, json};

use super::{
    catalogue::{Catalogue, Resource, Version},
    request::segments,
    status::Refusal,
};

/// Answers a request for discovery.
pub(super) fn answer(path: &str, accept: &str, catalogue: &Catalogue) -> Result<Value, Refusal> {
    let segments = segments(path);
    let parts: Vec<&str> = segments.iter().map(String::as_str).collect();
    let aggregated = accept.contains("as=APIGroupDiscoveryList");
    match parts.as_slice() {
        ["version"] => Ok(json!({
            "major": "1", "minor": "36", "gitVersion": "v1.36.3", "gitCommit": "unknown", "gitTreeState": "archive",
            "buildDate": "1970-01-01T00:00:00Z", "goVersion": "go1.26", "compiler": "gc", "platform": "linux/amd64",
        })),
        ["healthz" | "readyz" | "livez"] => Ok(json!("ok")),
        [root @ ("api" | "apis")] if aggregated => Ok(aggregate(catalogue, *root == "api", accept)),
        ["api"] => Ok(json!({
            "kind": "APIVersions", "versions": ["v1"],
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": "127.0.0.1:443"}],
        })),
        ["apis"] => {
            let groups: Vec<Value> = catalogue
                .groups()
                .iter()
                .filter(|(name, _)| !name.is_empty())
                .map(|(name, versions)| group(name, versions))
                .collect();
            Ok(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
        }
        ["api", version] => resources(catalogue, "", version),
        ["apis", name] => {
            let groups = catalogue.groups();
            let (name, versions) = groups.iter().find(|(known, _)| known == name).ok_or(Refusal::NotServed)?;
            let mut group = group(name, versions);
            group["kind"] = json!("APIGroup");
            group["apiVersion"] = json!("v1");
            Ok(group)
        }
        ["apis", group, version] => resources(catalogue, group, version),
        _ => Err(Refusal::NotServed),
    }
}

fn group(name: &str, versions: &[&str]) -> Value {
    let list: Vec<Value> =
        versions.iter().map(|v| json!({"groupVersion": format!("{name}/{v}"), "version": v})).collect();
    json!({"name": name, "versions": list, "preferredVersion": list.first()})
}

fn served<'a>(
    catalogue: &'a Catalogue,
    group: &'a str,
    version: &'a str,
) -> impl Iterator<Item = (&'a Resource, &'a Version)> {
    catalogue
        .all()
        .filter(move |resource| resource.group == group)
        .filter_map(move |resource| Some((&**resource, resource.version(version)?)))
}

fn resources(catalogue: &Catalogue, group: &str, version: &str) -> Result<Value, Refusal> {
    if catalogue.is_hidden(group) || !catalogue.serves(group, version) {
        return Err(Refusal::NotServed);
    }
    let mut list = Vec::new();
    for (resource, served) in self::served(catalogue, group, version) {
        let mut entry = json!({
            "name": resource.plural, "singularName": resource.singular, "namespaced": resource.namespaced,
            "kind": resource.kind, "verbs": resource.verbs(),
        });
        if !resource.short_names.is_empty() {
            entry["shortNames"] = json!(resource.short_names);
        }
        if !resource.categories.is_empty() {
            entry["categories"] = json!(resource.categories);
        }
        list.push(entry);
        if served.status {
            list.push(json!({
                "name": format!("{}/status", resource.plural), "singularName": "",
                "namespaced": resource.namespaced, "kind": resource.kind, "verbs": ["get", "patch", "update"],
            }));
        }
    }
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    Ok(json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": list}))
}

fn aggregate(catalogue: &Catalogue, core: bool, accept: &str) -> Value {
    let groups = catalogue.groups();
    let items = groups.iter().filter(|(name, _)| name.is_empty() == core).map(|(name, versions)| {
        let versions: Vec<Value> = versions
            .iter()
            .map(|version| {
                let resources: Vec<Value> =
                    served(catalogue, name, version).map(|(resource, served)| aggregated(resource, served)).collect();
                json!({"version": version, "resources": resources, "freshness": "Current"})
            })
            .collect();
        let metadata = if core { json!({}) } else { json!({"name": name}) };
        json!({"metadata": metadata, "versions": versions})
    });
    let version = if accept.contains("v=v2;") || !accept.contains("v2beta1") { "v2" } else { "v2beta1" };
    json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": format!("apidiscovery.k8s.io/{version}"), "metadata": {},
        "items": items.collect::<Vec<_>>(),
    })
}

fn aggregated(resource: &Resource, version: &Version) -> Value {
    // Built-in kinds leave group and version to their place in the document.
    let (group, name) = if resource.is_custom() { (resource.group.as_str(), version.name.as_str()) } else { ("", "") };
    let kind = json!({"group": group, "version": name, "kind": resource.kind});
    let mut entry = json!({
        "resource": resource.plural, "responseKind": kind,
        "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": resource.singular, "verbs": resource.verbs(),
    });
    if !resource.short_names.is_empty() {
        entry["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        entry["categories"] = json!(resource.categories);
    }
    if version.status {
        entry["subresources"] =
            json!([{"subresource": "status", "responseKind": kind, "verbs": ["get", "patch", "update"]}]);
    }
    entry
}
