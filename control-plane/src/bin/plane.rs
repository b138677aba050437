//! Builds the control plane's binary if need be. Without arguments it prints the path; with
//! arguments it runs the binary with them: `cargo run -p control-plane -- up --dir DIR --keep`.

use std::{
    env,
    os::unix::process::CommandExt as _,
    process::{Command, ExitCode},
};

fn main() -> ExitCode {
    let binary = match control_plane::binary() {
        Ok(binary) => binary,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    if env::args_os().len() == 1 {
        println!("{}", binary.display());
        return ExitCode::SUCCESS;
    }
    let error = Command::new(&binary).args(env::args_os().skip(1)).exec();
    eprintln!("{}: {error}", binary.display());
    ExitCode::FAILURE
}
