//! Reads the work queues of the controllers from their metrics.

use std::{collections::BTreeMap, fmt};

/// The counters of all named work queues.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Queues {
    queues: BTreeMap<String, Queue>,
    /// Why there are none.
    error: Option<String>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq)]
struct Queue {
    depth: f64,
    adds: f64,
    done: f64,
}

impl Queues {
    pub(crate) fn unknown(error: String) -> Self {
        Self { queues: BTreeMap::new(), error: Some(error) }
    }

    /// Takes the samples of the Prometheus text format that matter here.
    pub(crate) fn parse(text: &str) -> Self {
        let mut queues = BTreeMap::<String, Queue>::new();
        for line in text.lines() {
            let Some((metric, rest)) = line.split_once("{name=\"") else { continue };
            let Some((name, value)) = rest.split_once("\"} ") else { continue };
            let Ok(value) = value.trim().parse() else { continue };
            let queue = match metric {
                "workqueue_depth" | "workqueue_adds_total" | "workqueue_work_duration_seconds_count" => {
                    queues.entry(name.to_owned()).or_default()
                }
                _ => continue,
            };
            match metric {
                "workqueue_depth" => queue.depth = value,
                "workqueue_adds_total" => queue.adds = value,
                _ => queue.done = value,
            }
        }
        Self { queues, error: None }
    }

    /// Whether no item waits and none is being worked on: every add has been done.
    pub(crate) fn idle(&self) -> bool {
        self.error.is_none()
            && !self.queues.is_empty()
            && self.queues.values().all(|queue| queue.depth == 0.0 && queue.done >= queue.adds)
    }
}

impl fmt::Display for Queues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(error) = &self.error {
            return f.write_str(error);
        }
        let mut separator = "";
        for (name, Queue { depth, adds, done }) in &self.queues {
            write!(f, "{separator}{name}: depth {depth}, {done} of {adds} done")?;
            separator = "; ";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# TYPE workqueue_adds_total counter
workqueue_adds_total{name=\"namespace\"} 7
workqueue_depth{name=\"namespace\"} 0
workqueue_queue_duration_seconds_count{name=\"namespace\"} 99
workqueue_work_duration_seconds_count{name=\"namespace\"} 6
rest_client_requests_total{code=\"200\"} 5
";

    #[test]
    fn an_item_in_work_is_not_idle() {
        assert!(!Queues::parse(TEXT).idle());
        let done = TEXT.replace("} 6", "} 7");
        assert!(Queues::parse(&done).idle());
        assert!(!Queues::parse(&done.replace("} 0", "} 1")).idle());
    }

    #[test]
    fn no_answer_is_not_idle() {
        assert!(!Queues::parse("").idle());
        assert!(!Queues::unknown("down".to_owned()).idle());
    }
}
