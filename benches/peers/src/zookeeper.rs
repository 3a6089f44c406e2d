//! ZooKeeper: three servers set up as in its manual, with synced logs (`forceSync`, the default).
//!
//! `sync` and the read after it are sent together: the server answers a session's requests in
//! order.

mod session;

use std::{fs, path::Path, process::Command, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use futures::future::{BoxFuture, try_join};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Mutex,
};

use self::session::{Ask, Session};
use crate::{
    closed_loop::{Line, Load},
    process::in_path,
    system::{GROUP, VALUE_BYTES, path_of, value},
};

/// Debian's path, unless `ZOOKEEPER_CLASSPATH` is set.
const CLASSPATH: &str = "/usr/share/java/zookeeper.jar";

/// Time limit of a server's answer about its mode.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// The logging configuration, which is in its classpath.
const LOGGING: &str = "log4j.rootLogger=WARN, out\nlog4j.appender.out=org.apache.log4j.ConsoleAppender\n\
                       log4j.appender.out.layout=org.apache.log4j.PatternLayout\n";

/// The classpath.
pub(crate) fn classpath() -> Result<String> {
    in_path("java").context("there is no java in PATH (Debian: zookeeper)")?;
    match std::env::var("ZOOKEEPER_CLASSPATH") {
        Ok(given) => Ok(given),
        Err(_) if Path::new(CLASSPATH).exists() => Ok(CLASSPATH.to_owned()),
        Err(_) => {
            Err(anyhow::anyhow!("there is no {CLASSPATH} (Debian: zookeeper), and ZOOKEEPER_CLASSPATH is not set"))
        }
    }
}

/// Three servers, and their client ports.
pub(crate) fn commands(classpath: &str, dir: &Path, ports: &[u16]) -> Result<(Vec<Command>, Vec<u16>)> {
    let served = ports[..3].to_vec();
    fs::write(dir.join("log4j.properties"), LOGGING)?;
    let mut members = String::new();
    for id in 0..3 {
        members.push_str(&format!("server.{}=127.0.0.1:{}:{}\n", id + 1, ports[3 + id], ports[6 + id]));
    }
    let mut commands = Vec::new();
    for (id, port) in (1..).zip(&served) {
        let data = dir.join(format!("server-{id}"));
        fs::create_dir(&data)?;
        fs::write(data.join("myid"), id.to_string())?;
        let file = dir.join(format!("server-{id}.cfg"));
        let data = data.display();
        let settings = format!(
            "tickTime=2000\ninitLimit=10\nsyncLimit=5\ndataDir={data}\nclientPort={port}\nclientPortAddress=127.0.0.1\n\
             admin.enableServer=false\n4lw.commands.whitelist=srvr\nmaxClientCnxns=0\n{members}"
        );
        fs::write(&file, settings)?;
        let mut command = Command::new("java");
        command.args(["-Xmx1000m", "-cp", &format!("{}:{classpath}", dir.display())]);
        command.arg("org.apache.zookeeper.server.quorum.QuorumPeerMain").arg(&file);
        commands.push(command);
    }
    Ok((commands, served))
}

/// Whether the server at this endpoint leads.
pub(crate) async fn is_leader(endpoint: &str) -> Result<bool> {
    let asked = async {
        let mut stream = TcpStream::connect(endpoint).await?;
        stream.write_all(b"srvr").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    Ok(tokio::time::timeout(ANSWER_TIMEOUT, asked).await??.contains("Mode: leader"))
}

/// Opens a connection.
pub(crate) async fn line(endpoint: &str) -> Result<Arc<dyn Line>> {
    let session = Session::open(endpoint).await?;
    Ok(Arc::new(Connection { endpoint: endpoint.to_owned(), session: Mutex::new(session) }))
}

/// Creates the parents of the nodes.
pub(crate) async fn make_parents(endpoint: &str, nodes: u64) -> Result<()> {
    let session = Session::open(endpoint).await?;
    session.ask(Ask::Create(b""), "/peers").await?;
    for group in 0..nodes.div_ceil(GROUP) {
        session.ask(Ask::Create(b""), &format!("/peers/{group}")).await?;
    }
    Ok(())
}

/// A session with one server. If its connection has closed, the next request opens another: servers
/// disconnect when they lose their leader.
struct Connection {
    endpoint: String,
    session: Mutex<Session>,
}

impl Connection {
    async fn session(&self) -> Result<Session> {
        let mut session = self.session.lock().await;
        if session.is_closed() {
            *session = Session::open(&self.endpoint).await?;
        }
        Ok(session.clone())
    }
}

impl Line for Connection {
    fn request(&self, load: Load, node: u64) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let (path, session) = (path_of(node), self.session().await?);
            match load {
                Load::Fill => drop(session.ask(Ask::Create(&value(node)), &path).await?),
                Load::Write => drop(session.ask(Ask::SetData(&value(node)), &path).await?),
                Load::Read => {
                    let synced = session.ask(Ask::Sync, &path);
                    let (_, found) = try_join(synced, session.ask(Ask::GetData, &path)).await?;
                    check(&found, node)?;
                }
                Load::Lease | Load::Lock => bail!("ephemeral nodes are something else: not measured"),
                Load::LocalRead => check(&session.ask(Ask::GetData, &path).await?, node)?,
            }
            Ok(())
        })
    }
}

/// The value begins with its length.
fn check(found: &[u8], node: u64) -> Result<()> {
    let value = found.get(4..4 + VALUE_BYTES);
    ensure!(value.is_some_and(|value| value[..8] == node.to_be_bytes()), "expected the value of node {node}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_has_a_number_a_folder_and_the_same_members() {
        let dir = tempfile::tempdir().expect("a folder");
        let ports: Vec<u16> = (1..=9).collect();
        let (commands, served) = commands("some.jar", dir.path(), &ports).expect("written");
        assert_eq!((commands.len(), served), (3, vec![1, 2, 3]));
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).expect(name);
        assert_eq!(read("server-2/myid"), "2");
        let members = "server.1=127.0.0.1:4:7\nserver.2=127.0.0.1:5:8\nserver.3=127.0.0.1:6:9\n";
        assert!(read("server-1.cfg").ends_with(members) && read("server-3.cfg").ends_with(members));
    }
}
