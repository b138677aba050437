use std::{
    collections::BTreeMap,
    fmt,
    fs::File,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde::Deserialize;
use tokio::sync::{OnceCell, oneshot};

use crate::{
    Error,
    audit::{self, AuditLog},
    binary,
    metrics::Queues,
    state::StateDir,
};

/// A part of the control plane, running in a process of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Part {
    /// etcd, which keeps the objects. Restarting it loses nothing.
    Etcd,
    /// kube-apiserver.
    Apiserver,
    /// The garbage collector and the namespace controller.
    Controllers,
    /// kube-controller-manager with the controllers of [`Builder::stock_controllers`], where those
    /// don't run in the process of [`Part::Controllers`].
    Workloads,
}

impl Part {
    const ALL: [Self; 4] = [Self::Etcd, Self::Apiserver, Self::Controllers, Self::Workloads];

    /// The name that the supervisor uses.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::Apiserver => "apiserver",
            Self::Controllers => "controllers",
            Self::Workloads => "workloads",
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which garbage collector and namespace controller run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Controllers {
    /// The upstream ones, but new types are noticed within a second (see [`Builder::sync_period`])
    /// and requests are not rate-limited. They act under the usual service account names.
    #[default]
    Fast,
    /// The upstream kube-controller-manager with its usual periods (30 s until a new type is
    /// noticed), as `admin`.
    Stock,
    /// None. Owner references mean nothing, and namespaces never finish terminating.
    None,
}

/// Process ids at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pids {
    /// The process that starts and watches the others.
    pub supervisor: u32,
    /// The running parts.
    pub parts: BTreeMap<Part, u32>,
}

/// How to start a [`Plane`]. Made by [`Plane::builder`].
#[derive(Clone, Debug)]
#[must_use = "nothing happens before `start`"]
pub struct Builder {
    users: Vec<String>,
    flags: Vec<String>,
    controllers: Controllers,
    stock: Vec<String>,
    sync_period: Option<Duration>,
    gc_workers: Option<u32>,
    keep_state: bool,
}

impl Builder {
    /// Adds a user with a token of its own, in these groups, without any rights: grant some with
    /// [`fixtures::grant`](crate::fixtures::grant). Names are lower-case letters, digits and dashes.
    pub fn user(mut self, name: &str, groups: &[&str]) -> Self {
        let groups = groups.join(",");
        self.users.push(if groups.is_empty() { name.to_owned() } else { format!("{name}:{groups}") });
        self
    }

    /// Adds a command line flag of kube-apiserver, such as
    /// `--enable-admission-plugins=OwnerReferencesPermissionEnforcement`.
    pub fn apiserver_flag(mut self, flag: impl Into<String>) -> Self {
        self.flags.push(flag.into());
        self
    }

    /// Chooses the garbage collector and the namespace controller.
    pub fn controllers(mut self, controllers: Controllers) -> Self {
        self.controllers = controllers;
        self
    }

    /// Runs further controllers of kube-controller-manager, such as `deployment-controller`,
    /// `replicaset-controller`, `job-controller`: in the same process with
    /// [`Controllers::Stock`], else as [`Part::Workloads`]. There are no nodes, so pods stay
    /// unscheduled.
    pub fn stock_controllers(mut self, names: &[&str]) -> Self {
        self.stock.extend(names.iter().map(|name| (*name).to_owned()));
        self
    }

    /// How often [`Controllers::Fast`] look for new types; 1 s by default.
    pub fn sync_period(mut self, period: Duration) -> Self {
        self.sync_period = Some(period);
        self
    }

    /// Workers per queue of the garbage collector; 20 by default.
    pub fn gc_workers(mut self, workers: u32) -> Self {
        self.gc_workers = Some(workers);
        self
    }

    /// Keeps the state directory with its logs after the end. Delete it yourself.
    pub fn keep_state(mut self) -> Self {
        self.keep_state = true;
        self
    }

    /// Starts the control plane and waits until it is ready: 2–5 s, and several minutes more if
    /// the binary has to be built first (see [`binary`](crate::binary())).
    ///
    /// # Errors
    ///
    /// Those of [`binary`](crate::binary()), and [`Error::Start`] with the ends of the logs.
    pub async fn start(self) -> Result<Plane, Error> {
        let (running, ready) = off_runtime(move || self.launch()).await?;
        let mut configs = BTreeMap::new();
        for (user, path) in &ready.kubeconfigs {
            let wrap = |source| Error::Kubeconfig { path: path.clone(), source };
            let file = Kubeconfig::read_from(path).map_err(|e| wrap(Box::new(e)))?;
            let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
                .await
                .map_err(|e| wrap(Box::new(e)))?;
            configs.insert(user.clone(), config);
        }
        Ok(Plane { running: Arc::new(running), ready, configs })
    }

    fn launch(self) -> Result<(Running, Ready), Error> {
        let binary = binary::binary()?;
        let state = StateDir::create(self.keep_state)?;
        let errors = state.path().join("up.log");
        let errors = File::create(&errors).map_err(Error::io(format!("creating {}", errors.display())))?;
        let mut command = Command::new(&binary);
        command.arg("up").arg("--dir").arg(state.path());
        for user in &self.users {
            command.args(["--user", user]);
        }
        command.args([
            "--controllers",
            match self.controllers {
                Controllers::Fast => "fast",
                Controllers::Stock => "stock",
                Controllers::None => "none",
            },
        ]);
        if !self.stock.is_empty() {
            command.args(["--stock-controllers", &self.stock.join(",")]);
        }
        if let Some(period) = self.sync_period {
            command.args(["--sync-period", &format!("{}ms", period.as_millis())]);
        }
        if let Some(workers) = self.gc_workers {
            command.args(["--gc-workers", &workers.to_string()]);
        }
        if !self.keep_state {
            command.arg("--remove");
        }
        command.arg("--").args(&self.flags);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        let mut child = command.spawn().map_err(Error::io(format!("running {}", binary.display())))?;
        let pid = child.id();
        let pipe = child.stdin.take().zip(child.stdout.take());
        let mut running = Running {
            pid,
            controllers: self.controllers,
            commands: Mutex::new(pipe.map(|(input, output)| Commands { input, output: BufReader::new(output) })),
            pids: Mutex::default(),
            child: Mutex::new(child),
            state,
        };
        // Every exit from here on drops `running`, which ends the process.
        let line = running.first_line()?;
        let ready: Ready = serde_json::from_str(&line)
            .map_err(|e| Error::Start { message: format!("{e} in {line:?}"), log: String::new() })?;
        running.pids =
            Mutex::new(ready.pids.iter().filter_map(|(name, pid)| Some((part_named(name)?, *pid))).collect());
        Ok((running, ready))
    }
}

fn part_named(name: &str) -> Option<Part> {
    Part::ALL.into_iter().find(|part| part.name() == name)
}

/// A running control plane. Dropping it ends all its processes and removes its state.
///
/// It may be used from several tasks and runtimes at once.
#[derive(Debug)]
pub struct Plane {
    running: Arc<Running>,
    ready: Ready,
    configs: BTreeMap<String, Config>,
}

impl Plane {
    /// Starts to describe a control plane of your own.
    pub fn builder() -> Builder {
        Builder {
            users: Vec::new(),
            flags: Vec::new(),
            controllers: Controllers::Fast,
            stock: Vec::new(),
            sync_period: None,
            gc_workers: None,
            keep_state: false,
        }
    }

    /// The control plane that all tests of this process share, started at the first call: the
    /// default one, with the users `alice` and `bob`. It ends with the process.
    ///
    /// Use namespaces and names of your own ([`fixtures::ns`](crate::fixtures::ns)), and start
    /// another control plane for tests that kill parts.
    ///
    /// # Panics
    ///
    /// If it can't be started.
    pub async fn shared() -> &'static Self {
        static SHARED: OnceCell<Plane> = OnceCell::const_new();
        SHARED
            .get_or_init(async || match Self::builder().user("alice", &[]).user("bob", &[]).start().await {
                Ok(plane) => plane,
                Err(error) => panic!("{error}"),
            })
            .await
    }

    // ---- clients -----------------------------------------------------------

    /// A client with all rights (user `admin`, group `system:masters`), as kube builds it by
    /// default, retries included.
    ///
    /// A client belongs to the Tokio runtime in which it was made, and every `#[tokio::test]` has
    /// its own: make a new one for each test.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime.
    #[must_use]
    pub fn client(&self) -> Client {
        client(self.config())
    }

    /// A client of the named user; see [`config_as`](Self::config_as).
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime.
    #[must_use]
    pub fn client_as(&self, user: &str) -> Client {
        client(self.config_as(user))
    }

    /// A client of the named user whose calls are recorded and can be made to fail. It does not
    /// retry, so that the record is what the caller did; see [`audit`].
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime.
    #[must_use]
    pub fn audited(&self, user: &str) -> (Client, AuditLog) {
        audit::wrap(self.config_as(user)).expect("the supervisor writes usable credentials")
    }

    /// The configuration of the administrator.
    #[must_use]
    pub fn config(&self) -> Config {
        self.config_as("admin")
    }

    /// The configuration of the named user: `admin`, a user of [`Builder::user`] with its token,
    /// or any other name, which the administrator then impersonates (without groups, and without
    /// rights until some are granted).
    #[must_use]
    pub fn config_as(&self, user: &str) -> Config {
        self.configs.get(user).cloned().unwrap_or_else(|| {
            let mut config = self.configs["admin"].clone();
            config.auth_info.impersonate = Some(user.to_owned());
            config
        })
    }

    /// The configuration of whoever holds this bearer token.
    #[must_use]
    pub fn config_with_token(&self, token: String) -> Config {
        let mut config = self.config();
        config.auth_info = Default::default();
        config.auth_info.token = Some(token.into());
        config
    }

    /// The kubeconfig file of the administrator, for other programs.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.ready.kubeconfig
    }

    /// The kubeconfig file of a user of [`Builder::user`].
    #[must_use]
    pub fn kubeconfig_as(&self, user: &str) -> Option<&Path> {
        self.ready.kubeconfigs.get(user).map(PathBuf::as_path)
    }

    /// The address of the API server.
    #[must_use]
    pub fn server(&self) -> &str {
        &self.ready.server
    }

    /// The folder with logs (`apiserver.log` and so on), credentials and data.
    #[must_use]
    pub fn state(&self) -> &Path {
        self.running.state.path()
    }

    /// How long the start took, without building.
    #[must_use]
    pub fn started_in(&self) -> Duration {
        Duration::from_secs_f64(self.ready.seconds)
    }

    // ---- processes ---------------------------------------------------------

    /// The ids of the running processes.
    #[must_use]
    pub fn pids(&self) -> Pids {
        Pids { supervisor: self.running.pid, parts: lock(&self.running.pids).clone() }
    }

    /// Kills a part with SIGKILL and waits until it is gone.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if it does not run, [`Error::Ended`] if the supervisor is gone.
    pub async fn kill(&self, part: Part) -> Result<(), Error> {
        self.command("kill", part).await
    }

    /// Starts a part that was killed, on the same port, and waits until it is ready. For the
    /// garbage collector that means that every type is being watched.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if it runs or does not become ready, [`Error::Ended`] if the supervisor
    /// is gone.
    pub async fn start_part(&self, part: Part) -> Result<(), Error> {
        self.command("start", part).await
    }

    /// Stops a part with SIGSTOP: its connections stay open and nothing is answered.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if it does not run, [`Error::Ended`] if the supervisor is gone.
    pub async fn pause(&self, part: Part) -> Result<(), Error> {
        self.command("pause", part).await
    }

    /// Lets a paused part go on.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if it does not run, [`Error::Ended`] if the supervisor is gone.
    pub async fn resume(&self, part: Part) -> Result<(), Error> {
        self.command("resume", part).await
    }

    /// Kills the controllers, if they run, and starts them anew: the garbage collector begins with
    /// an empty graph and judges every object again.
    ///
    /// # Errors
    ///
    /// As for [`kill`](Self::kill) and [`start_part`](Self::start_part).
    pub async fn restart_garbage_collector(&self) -> Result<(), Error> {
        if self.pids().parts.contains_key(&Part::Controllers) {
            self.kill(Part::Controllers).await?;
        }
        self.start_part(Part::Controllers).await
    }

    /// Ends everything and waits for it; dropping the value does the same.
    ///
    /// # Errors
    ///
    /// [`Error::Ended`] if the supervisor reports a failure, for instance that a part had died.
    pub async fn shutdown(self) -> Result<(), Error> {
        let running = Arc::clone(&self.running);
        off_runtime(move || running.stop()).await
    }

    async fn command(&self, verb: &'static str, part: Part) -> Result<(), Error> {
        let running = Arc::clone(&self.running);
        off_runtime(move || running.command(verb, part)).await
    }

    // ---- controllers -------------------------------------------------------

    /// Whether the garbage collector knows an object of this UID: one that it has seen, or one
    /// that an owner reference names and that it has not yet found to be absent.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchPart`] without [`Controllers::Fast`], [`Error::Kube`] while they are down.
    pub async fn graph_has(&self, uid: &str) -> Result<bool, Error> {
        Ok(self.ask_collector(&format!("/has?uid={uid}")).await?.trim() == "true")
    }

    /// Whether the garbage collector knows that the object of UID `dependent` refers to `owner`.
    ///
    /// # Errors
    ///
    /// As [`graph_has`](Self::graph_has).
    pub async fn graph_links(&self, dependent: &str, owner: &str) -> Result<bool, Error> {
        Ok(self.ask_collector(&format!("/graph?uid={dependent}")).await?.contains(owner))
    }

    async fn ask_collector(&self, path: &str) -> Result<String, Error> {
        if self.running.controllers != Controllers::Fast {
            let message = "only the fast controllers tell".to_owned();
            return Err(Error::NoSuchPart { part: Part::Controllers, message });
        }
        ask(&self.controllers_client()?, path).await
    }

    /// Waits until the garbage collector and the namespace controller have nothing to do: all
    /// types are watched, and for a while no queue had, or got, an item.
    ///
    /// Items that wait for a retry can't be seen: a deletion that was refused, and a terminating
    /// namespace, which is first looked at after 5 s. Nor is a type that was made less than a
    /// [sync period](Builder::sync_period) ago.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`] after 60 s, [`Error::NoSuchPart`] without controllers.
    pub async fn gc_quiet(&self) -> Result<(), Error> {
        const POLLS: u32 = 6;
        const PAUSE: Duration = Duration::from_millis(25);
        let limit = Duration::from_secs(60);
        let client = self.controllers_client()?;
        let ready = if self.running.controllers == Controllers::Stock { "/healthz" } else { "/readyz" };
        let begin = Instant::now();
        let (mut same, mut last) = (0, Queues::default());
        loop {
            let metrics = async {
                ask(&client, ready).await?;
                ask(&client, "/metrics").await
            };
            let now = match metrics.await {
                Ok(text) => Queues::parse(&text),
                Err(error) => Queues::unknown(error.to_string()),
            };
            same = if now.idle() && now == last { same + 1 } else { 0 };
            if same == POLLS {
                return Ok(());
            }
            if begin.elapsed() > limit {
                let what = format!("idle controllers; last seen: {now}");
                return Err(Error::TimedOut { what, seconds: limit.as_secs() });
            }
            last = now;
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// A client for the address at which the controllers tell about themselves.
    fn controllers_client(&self) -> Result<Client, Error> {
        let Ok(address) = self.ready.controllers.parse() else {
            let message = "this control plane was started without controllers".to_owned();
            return Err(Error::NoSuchPart { part: Part::Controllers, message });
        };
        let mut config = Config::new(address);
        config.accept_invalid_certs = true; // kube-controller-manager signs its own
        config.default_retry = false;
        Client::try_from(config).map_err(Error::kube("connecting to the controllers"))
    }
}

async fn ask(controllers: &Client, path: &str) -> Result<String, Error> {
    let doing = || format!("asking the controllers for {path}");
    let request = http::Request::get(path).body(Vec::new());
    let request = request.map_err(kube::Error::HttpError).map_err(Error::kube(doing()))?;
    controllers.request_text(request).await.map_err(Error::kube(doing()))
}

fn client(config: Config) -> Client {
    Client::try_from(config).expect("the supervisor writes usable credentials")
}

/// The supervisor's first line.
#[derive(Debug, Deserialize)]
struct Ready {
    server: String,
    controllers: String,
    kubeconfig: PathBuf,
    kubeconfigs: BTreeMap<String, PathBuf>,
    pids: BTreeMap<String, u32>,
    seconds: f64,
}

/// The supervisor's answer to a command.
#[derive(Debug, Deserialize)]
struct Answer {
    error: Option<String>,
    pid: Option<u32>,
}

/// The supervisor process. Its stdin has to stay open: its end ends everything.
#[derive(Debug)]
struct Running {
    pid: u32,
    controllers: Controllers,
    commands: Mutex<Option<Commands>>,
    pids: Mutex<BTreeMap<Part, u32>>,
    child: Mutex<Child>,
    state: StateDir, // last: removed once the process is gone
}

#[derive(Debug)]
struct Commands {
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Running {
    fn first_line(&self) -> Result<String, Error> {
        let mut line = String::new();
        let read = lock(&self.commands).as_mut().map(|commands| commands.output.read_line(&mut line));
        match read {
            Some(Ok(length)) if length > 0 => Ok(line),
            _ => {
                let (message, log) = self.last_words();
                Err(Error::Start { message, log })
            }
        }
    }

    /// One command and its answer. The lock is held for both, so answers can't be mixed up.
    fn command(&self, verb: &str, part: Part) -> Result<(), Error> {
        let command = format!("{verb} {part}");
        let mut guard = lock(&self.commands);
        let mut line = String::new();
        let read = guard.as_mut().map(|commands| {
            writeln!(commands.input, "{command}")?;
            commands.output.read_line(&mut line)
        });
        if !matches!(read, Some(Ok(length)) if length > 0) {
            drop(guard);
            let (message, log) = self.last_words();
            return Err(Error::Ended { message, log });
        }
        let answer: Answer = serde_json::from_str(&line)
            .unwrap_or_else(|e| Answer { error: Some(format!("{e} in {line:?}")), pid: None });
        if let Some(message) = answer.error {
            return Err(Error::Refused { command, message });
        }
        match (verb, answer.pid) {
            ("kill", _) => drop(lock(&self.pids).remove(&part)),
            ("start", Some(pid)) => drop(lock(&self.pids).insert(part, pid)),
            _ => {}
        }
        Ok(())
    }

    /// Closes stdin and waits; kills after a while.
    fn stop(&self) -> Result<(), Error> {
        lock(&self.commands).take();
        lock(&self.pids).clear();
        let mut child = lock(&self.child);
        for _ in 0..1000 {
            match child.try_wait() {
                Ok(None) => thread::sleep(Duration::from_millis(5)),
                Ok(Some(status)) if status.success() => return Ok(()),
                _ => {
                    drop(child);
                    let (message, log) = self.last_words();
                    return Err(Error::Ended { message, log });
                }
            }
        }
        let _ = child.kill();
        let _ = child.wait();
        Err(Error::Ended { message: "it had to be killed".to_owned(), log: String::new() })
    }

    /// How the supervisor ended, what it said, and the ends of the logs.
    fn last_words(&self) -> (String, String) {
        let status = match lock(&self.child).try_wait() {
            Ok(Some(status)) => status.to_string(),
            Ok(None) => "still running".to_owned(),
            Err(error) => error.to_string(),
        };
        let said = std::fs::read_to_string(self.state.path().join("up.log")).unwrap_or_default();
        let said = said.lines().last().unwrap_or("nothing was said").to_owned();
        (format!("{said} ({status})"), self.state.log_tails())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Nobody is left to hear about an error; state and processes are gone either way.
        let _ = self.stop();
    }
}

/// The data under these locks is valid at every step, so a panic elsewhere does not matter.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs blocking work in a thread of its own, not one of the runtime: a runtime waits for those
/// when it ends, and a failed test should not wait for a compiler.
async fn off_runtime<T: Send + 'static>(work: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<T, Error> {
    let (send, receive) = oneshot::channel();
    thread::Builder::new()
        .name("control-plane".to_owned())
        .spawn(move || drop(send.send(work())))
        .map_err(Error::io("starting a thread"))?;
    match receive.await {
        Ok(result) => result,
        Err(_) => panic!("the thread panicked; its message stands above"),
    }
}
