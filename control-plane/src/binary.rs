//! Builds the Go program once and keeps it in the target directory.

use std::{
    env,
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Instant,
};

use crate::Error;

/// The Go sources. A change in one of them makes a new binary.
const SOURCES: [&str; 3] = ["main.go", "go.mod", "go.sum"];

/// Oldest minor version of Go 1 that compiles the sources.
const GO_MINOR: u32 = 26;

/// The folder `<target>/control-plane`, made if missing.
///
/// Cargo marks its target directory with `CACHEDIR.TAG`, so the directory is found from the
/// running executable, whatever sets it; without one (an installed binary) it is the workspace's
/// `target`.
pub(crate) fn home() -> Result<PathBuf, Error> {
    let executable = env::current_exe().map_err(Error::io("finding the running executable"))?;
    let target = executable
        .ancestors()
        .skip(1)
        .find(|folder| folder.join("CACHEDIR.TAG").is_file())
        .map_or_else(|| manifest_dir().join("../target"), Path::to_owned);
    let home = target.join("control-plane");
    fs::create_dir_all(&home).map_err(Error::io(format!("creating {}", home.display())))?;
    Ok(home)
}

fn manifest_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the path of the control plane's binary and builds it first if need be.
///
/// The environment variable `KUBE_CUSTODY_PLANE` may name a binary built elsewhere. Otherwise the
/// binary is `<target>/control-plane/plane-<hash of the Go sources>`. A cold build takes several
/// minutes, and says so on stderr; processes that want the binary meanwhile wait for a file lock.
///
/// # Errors
///
/// [`Error::Go`] without a Go that is new enough, [`Error::Build`] if the compiler fails,
/// [`Error::Io`] for files.
pub fn binary() -> Result<PathBuf, Error> {
    if let Some(given) = env::var_os("KUBE_CUSTODY_PLANE").filter(|given| !given.is_empty()) {
        let given = PathBuf::from(given);
        // Relative paths would depend on the folder a test happens to run in.
        return fs::canonicalize(&given).map_err(Error::io(format!("KUBE_CUSTODY_PLANE={}", given.display())));
    }
    let home = home()?;
    let go = manifest_dir().join("go");
    let mut hash = Fnv::default();
    for name in SOURCES {
        let path = go.join(name);
        hash.add(&fs::read(&path).map_err(Error::io(format!("reading {}", path.display())))?);
    }
    let binary = home.join(format!("plane-{:016x}", hash.0));
    if binary.is_file() {
        return Ok(binary);
    }
    let lock = home.join("build.lock");
    let lock = File::create(&lock).map_err(Error::io(format!("creating {}", lock.display())))?;
    lock.lock().map_err(Error::io("waiting for another process that builds the control plane"))?;
    if !binary.is_file() {
        build(&go, &home, &binary)?;
    }
    Ok(binary)
}

fn build(go: &Path, home: &Path, binary: &Path) -> Result<(), Error> {
    check_version(go)?;
    note(&format!("building the test control plane ({}); the first time this takes several minutes", binary.display()));
    let begin = Instant::now();
    remove(home, "building-")?; // of a process that was killed meanwhile
    let module = go.join("go.mod");
    let module = fs::read_to_string(&module).map_err(Error::io(format!("reading {}", module.display())))?;
    let unfinished = home.join(format!("building-{}", std::process::id()));
    let mut command = Command::new("go");
    command.args(["build", "-ldflags", &linker_flags(&module), "-o"]).arg(&unfinished).arg(".").current_dir(go);
    let output = run(&mut command)?;
    if !output.status.success() {
        return Err(Error::Build { command: format!("{command:?}"), output: text(&output) });
    }
    remove(home, "plane-")?; // of older sources; one that still runs is not harmed
    fs::rename(&unfinished, binary).map_err(Error::io(format!("renaming to {}", binary.display())))?;
    note(&format!("built the test control plane in {:.1} s", begin.elapsed().as_secs_f64()));
    Ok(())
}

fn remove(home: &Path, prefix: &str) -> Result<(), Error> {
    for entry in fs::read_dir(home).map_err(Error::io(format!("listing {}", home.display())))?.flatten() {
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}

/// The version variables of an upstream release build: without them the server calls itself
/// `v0.0.0-master+$Format:%H$`, and clients that parse the version fail.
fn linker_flags(module: &str) -> String {
    let version = module
        .lines()
        .find_map(|line| line.trim().strip_prefix("k8s.io/kubernetes "))
        .and_then(|rest| rest.split_whitespace().next())
        .unwrap_or("v0.0.0");
    let minor = version.split('.').nth(1).unwrap_or("0");
    let prefix = "k8s.io/component-base/version";
    format!(
        "-s -w -X {prefix}.gitVersion={version} -X {prefix}.gitMajor=1 -X {prefix}.gitMinor={minor} \
         -X {prefix}.gitCommit=unknown -X {prefix}.gitTreeState=archive"
    )
}

fn check_version(go: &Path) -> Result<(), Error> {
    // In the module's folder, so that a toolchain that Go would fetch by itself counts.
    let output = run(Command::new("go").arg("version").current_dir(go))?;
    let said = text(&output);
    match minor_version(&said) {
        _ if !output.status.success() => Err(Error::Go(format!("`go version` failed: {said}"))),
        Some(minor) if minor >= GO_MINOR => Ok(()),
        _ => Err(Error::Go(format!("`go version` says \"{said}\""))),
    }
}

/// The 26 of `go version go1.26.8 linux/amd64`.
fn minor_version(said: &str) -> Option<u32> {
    let rest = &said[said.find("go1.")? + "go1.".len()..];
    let digits = rest.find(|c: char| !c.is_ascii_digit()).map_or(rest, |end| &rest[..end]);
    digits.parse().ok()
}

fn run(command: &mut Command) -> Result<Output, Error> {
    command.output().map_err(|source| Error::Go(format!("can't run `go`: {source}")))
}

fn text(output: &Output) -> String {
    let text = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    String::from_utf8_lossy(&text).trim().to_owned()
}

/// Prints past the capture of the test runner: who waits for minutes wants to know why.
fn note(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// FNV-1a of 64 bits: stable across compilers, unlike the standard library's hasher.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn add(&mut self, bytes: &[u8]) {
        for part in [&(bytes.len() as u64).to_le_bytes(), bytes] {
            for byte in part {
                self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_version_of_go() {
        assert_eq!(minor_version("go version go1.26.8 linux/amd64"), Some(26));
        assert_eq!(minor_version("go version go1.27rc1 linux/amd64"), Some(27));
        assert_eq!(minor_version("go version devel go1.28-1a2b3c Mon linux/amd64"), Some(28));
        assert_eq!(minor_version("command not found"), None);
    }

    #[test]
    fn takes_the_version_of_kubernetes_from_the_module() {
        let flags = linker_flags("require (\n\tk8s.io/klog/v2 v2.1.0\n\tk8s.io/kubernetes v1.36.3\n)\n");
        assert!(flags.contains(".gitVersion=v1.36.3 "), "{flags}");
        assert!(flags.contains(".gitMinor=36 "), "{flags}");
    }

    #[test]
    fn hash_depends_on_where_a_file_ends() {
        let hash = |parts: [&str; 2]| {
            let mut hash = Fnv::default();
            parts.iter().for_each(|part| hash.add(part.as_bytes()));
            hash.0
        };
        assert_ne!(hash(["ab", "c"]), hash(["a", "bc"]));
    }
}
