//! The worlds: each a small scenario around one race or one fault.

use std::time::Duration;

use leasehold_protocol::lease_policy::{ObjectTerm, OnWrite};

use crate::world::{
    Faults, LEASE, Member, Op, TERM, World, attach, children, create, data, delete, delete_all, either, grant, list,
    make_volume, put, read, remove_volume, revoke,
};

/// All worlds.
pub fn all() -> Vec<World> {
    let mut worlds = races();
    worlds.extend(elections());
    worlds.extend(lapses());
    worlds.extend(policies());
    worlds.extend(trees());
    worlds.extend(leases());
    worlds.extend(connections());
    worlds
}

/// The world with this name; none if there is no such world.
pub fn named(name: &str) -> Option<World> {
    all().into_iter().find(|world| world.name == name)
}

const NONE: Faults =
    Faults { elections: 0, reelections: 0, breaks: 0, cuts: 0, lost_recalls: 0, overtakings: 0, misdirections: 0 };

/// Volumes with other lease policies than the usual one.
fn policies() -> Vec<World> {
    let world = |name, about| World::new(name, about).node("/a", "0");
    let term = ObjectTerm::Fixed(Duration::from_millis(TERM));
    let holder = || Member::slow().holds(&[data("/a")]).does(&[read("/a"), read("/a")]);
    vec![
        world("polled", "one client writes an object that another reads, and nobody gets a lease on it")
            .least(100)
            .policy(ObjectTerm::Zero, OnWrite::Recall)
            .member(Member::slow().does(&[put("/a", "1"), read("/a")]))
            .member(Member::slow().does(&[read("/a"), read("/a")]).does(&[read("/a")])),
        world("waited-out", "a write sends no recall, and waits for the object lease of a live client")
            .least(1000)
            .policy(term, OnWrite::Wait)
            .member(Member::slow().does(&[put("/a", "1")]))
            .member(holder())
            .moments(&[120, 199, 206]),
        world("waited-out-covering", "a write waits for all that a covering holder may have, also after an election")
            .least(1000)
            .covering()
            .policy(term, OnWrite::Wait)
            .member(Member::slow().does(&[put("/a", "1")]))
            .member(holder())
            .moments(&[120, 199, 206])
            .faults(Faults { elections: 1, ..NONE }),
    ]
}

/// Reads and writes that overtake each other under one leader.
fn races() -> Vec<World> {
    let world = |name, about| World::new(name, about).node("/a", "0");
    vec![
        world("read-write", "one client writes an object of which another has a copy and reads it")
            .least(2000)
            .member(Member::slow().does(&[put("/a", "1"), read("/a")]))
            .member(Member::slow().holds(&[data("/a")]).does(&[read("/a"), read("/a")]).does(&[read("/a")])),
        world(
            "miss-write",
            "one client writes an object while another misses it twice, and its answers overtake each other",
        )
        .least(3000)
        .member(Member::slow().holds(&[data("/")]).does(&[put("/a", "1"), put("/a", "2")]))
        .member(Member::slow().holds(&[data("/")]).does(&[read("/a"), read("/a")]).does(&[read("/a")]))
        .faults(Faults { overtakings: 1, ..NONE }),
        world("two-writers", "two clients write an object of which a third has a copy, and read it")
            .least(10000)
            .member(Member::slow().does(&[put("/a", "1"), read("/a")]))
            .member(Member::slow().does(&[put("/a", "2"), read("/a")]))
            .member(Member::slow().holds(&[data("/a")]).does(&[read("/a")])),
        world("writer-reads", "a client reads what it is writing, and another writes it too")
            .least(200000)
            .member(Member::slow().holds(&[data("/a")]).does(&[put("/a", "1")]).does(&[read("/a")]))
            .member(Member::slow().holds(&[data("/")]).does(&[put("/a", "2"), read("/a")]))
            .moments(&[25]),
        world("evicted", "a client's cache drops a copy that another is writing, and reads it again")
            .least(800)
            .member(Member::slow().does(&[put("/a", "1")]))
            .member(Member::slow().holds(&[data("/a")]).does(&[Op::Evict(data("/a")), read("/a")]).does(&[read("/a")])),
        world("evicted-late", "a cache drops a copy before the answer to an earlier request for it comes")
            .least(25000)
            .member(Member::slow().holds(&[data("/")]).does(&[put("/a", "1")]).does(&[
                read("/a"),
                Op::Evict(data("/a")),
                read("/a"),
            ]))
            .member(Member::slow().holds(&[data("/")]).does(&[put("/a", "2")]))
            .faults(Faults { overtakings: 1, ..NONE }),
        world("covering", "two clients of a volume whose objects are not kept track of write, and read")
            .least(400)
            .covering()
            .member(Member::slow().holds(&[data("/a")]).does(&[put("/a", "1")]))
            .member(Member::slow().holds(&[data("/a")]).does(&[put("/a", "2"), read("/a")])),
        world(
            "transaction",
            "a client writes one of two pairs of objects, by an object that another writes, and a third reads",
        )
        .least(1000)
        .node("/b", "0")
        .node("/c", "0")
        .member(Member::slow().does(&[either("/a", "0", [("/a", "1"), ("/b", "2")], [("/b", "3"), ("/c", "4")])]))
        .member(Member::slow().does(&[put("/a", "5")]))
        .member(Member::slow().holds(&[data("/b"), data("/c")]).does(&[read("/b"), read("/c")])),
    ]
}

/// Leaders that are deposed without knowing. Clients repeat refused requests after 20 ms or more.
fn elections() -> Vec<World> {
    let world = |name, about| World::new(name, about).node("/a", "0").servers(&[10_000, 10_000]);
    let one = Faults { elections: 1, ..NONE };
    vec![
        world("election-recall", "the leader is replaced while it recalls a copy for a write")
            .least(120000)
            .member(Member::slow().holds(&[data("/")]).does(&[put("/a", "1")]))
            .member(Member::slow().holds(&[data("/a")]).does(&[read("/a")]))
            .moments(&[30])
            .faults(one),
        world("reelection", "the leader is elected again with entries on their way")
            .least(70000)
            .member(Member::slow().holds(&[data("/")]).does(&[put("/a", "1")]))
            .member(Member::slow().holds(&[data("/")]).does(&[read("/a")]))
            .moments(&[30])
            .faults(Faults { reelections: 1, ..NONE }),
        world("deposed-reads", "a client reads from a leader that was replaced, while another writes at the new one")
            .least(50000)
            .member(Member::slow().does(&[put("/a", "1")]))
            .member(Member::slow().holds(&[data("/")]).does(&[read("/a")]))
            .moments(&[30])
            .faults(one),
        world("deposed-promises", "a leader that was paused and replaced promises, and its successor ends the lease")
            .least(65000)
            .member(Member::slow().holds(&[data("/a")]).does(&[read("/a")]))
            .moments(&[110, 218, 228])
            .faults(one),
    ]
}

/// Leases that end, and clients that return.
fn lapses() -> Vec<World> {
    let world = |name, about| World::new(name, about).node("/a", "0");
    vec![
        world("pause", "a client is paused around the end of its lease, and before it uses what it looked up")
            .large()
            .least(150000)
            .member(Member::slow().does(&[put("/a", "1")]))
            .member(Member::slow().holds(&[data("/a")]).does(&[read("/a")]))
            .moments(&[199, 204])
            .splits_hits(),
        world("slow-answer", "the answer that brings a lease is so slow that the lease has nearly ended when it comes")
            .large()
            .least(150000)
            .member(Member::slow().does(&[put("/a", "1")]))
            .member(Member::slow().does(&[read("/a")]))
            .moments(&[100, 204]),
        world(
            "lapse-return",
            "a client comes back after its lease has ended, while another writes the object of its copy",
        )
        .least(100000)
        .member(Member::slow().does(&[put("/a", "1")]))
        .member(Member::slow().holds(&[data("/a")]).does(&[read("/")]))
        .moments(&[201, 226]),
        world("object-lapse", "a client's object lease ends before its volume lease, while another writes")
            .least(30000)
            .object_term(TERM)
            .member(Member::slow().does(&[put("/a", "1")]))
            .member(Member::slow().holds(&[data("/a")]).does(&[read("/a")]))
            .moments(&[120, 199]),
        world("dead-holder", "the holder of a copy dies, and another writes")
            .least(6000)
            .member(Member::slow().does(&[put("/a", "1")]))
            .member(Member::slow().holds(&[data("/a")]).does(&[Op::Vanish]))
            .moments(&[100, 199, 204]),
        // The clock of a fast server counts 600 s at 60 ms after the silence.
        world(
            "session-return",
            "a client comes back when its session is about to end, and another writes the object of its copy",
        )
        .least(100000)
        .member(Member::slow().holds(&[data("/a")]).does(&[read("/a")]))
        .member(Member::slow().does(&[put("/a", "1")]))
        .silence(Duration::from_secs(594))
        .moments(&[70]),
        world("close", "a client that has a copy closes its session, and another writes")
            .least(300)
            .member(Member::slow().does(&[put("/a", "1")]))
            .member(Member::slow().holds(&[data("/a")]).does(&[Op::Close]).does(&[read("/a")])),
    ]
}

/// Nodes that are made and removed, and volumes.
fn trees() -> Vec<World> {
    vec![
        World::new("absence", "a client has a copy of the absence of a node that another makes")
            .least(500)
            .member(Member::slow().does(&[create("/b", "1"), delete("/b")]))
            .member(Member::slow().holds(&[data("/b")]).does(&[read("/b"), read("/b")])),
        World::new(
            "children",
            "a client has a copy of a list of children; another adds a child, and a third removes it",
        )
        .least(3000)
        .member(Member::slow().does(&[create("/b", "1")]))
        .member(Member::slow().holds(&[children("/")]).does(&[list("/"), read("/b")]))
        .member(Member::slow().does(&[delete("/b")])),
        World::new("volume-made", "a volume is made over cached paths, and removed, while others read and write there")
            .least(20000)
            .node("/v/y", "0")
            .member(Member::slow().holds(&[data("/")]).does(&[make_volume("/v"), remove_volume("/v")]))
            .member(Member::slow().holds(&[data("/v/y")]).does(&[read("/v/y"), read("/v/y")]))
            .member(Member::slow().does(&[put("/v/y", "1")])),
        World::new("volume-removed", "a volume is removed and made again while others cache, read and write its nodes")
            .least(20000)
            .node("/v/y", "0")
            .volume("/v")
            .member(Member::slow().does(&[remove_volume("/v"), make_volume("/v")]))
            .member(Member::slow().holds(&[data("/v/y")]).does(&[read("/v/y"), read("/v/y")]))
            .member(Member::slow().does(&[put("/v/y", "1")])),
        World::new("subtree", "a subtree is removed; others have copies of its top, a node and a list")
            .least(2000)
            .node("/d/x", "0")
            .member(Member::slow().does(&[delete_all("/d")]))
            .member(Member::slow().holds(&[data("/d/x"), children("/d")]).does(&[read("/d/x"), list("/d")]))
            .member(Member::slow().holds(&[data("/d")]).does(&[read("/d")])),
    ]
}

/// Key leases of one name: granted, renewed, revoked, expired, and granted again.
fn leases() -> Vec<World> {
    const LONG: u64 = TERM * 100;
    let write = Op::Write;
    vec![
        // By the server's clock the first lease ends 204 ms after its grant. The recall of its node
        // waits for 205 ms.
        World::new(
            "lease-reused",
            "a revocation waits for a holder while its lease expires and another client grants it anew",
        )
        .least(25000)
        .node("/d", "0")
        .age(Duration::from_millis(195))
        .member(Member::slow().first(&[grant(TERM), attach("/a", "0")]).does(&[write(revoke())]))
        .member(Member::slow().does(&[write(grant(LONG))]))
        .member(Member::slow().holds(&[data("/a")]).does(&[write(attach("/d/b", "1")), read("/d/b")]))
        .first_moment(10),
        World::new("lease-kept", "a client keeps a lease alive around its end, another revokes it and grants it anew")
            .least(11000)
            .member(Member::slow().first(&[grant(TERM)]).does(&[Op::Keep(LEASE)]))
            .member(Member::slow().does(&[write(revoke()), write(grant(TERM))]))
            .moments(&[100, 204]),
        World::new("renewal-waits", "the renewal of a holder waits for a tick, which may come late")
            .least(15000)
            .slow_ticks()
            .member(Member::slow().holds(&[data("/a")]).does(&[read("/a"), read("/a")]))
            .moments(&[102, 125, 260]),
        World::new("grant-repeated", "the answer to a grant is lost, and another client grants the lease meanwhile")
            .least(1300)
            .member(Member::slow().does(&[write(grant(LONG))]))
            .member(Member::slow().does(&[write(revoke()), write(grant(LONG + 1))]))
            .faults(Faults { breaks: 1, ..NONE }),
        World::new(
            "attach-revoke",
            "a lease is revoked while one node after the other is attached, and others have copies of them",
        )
        .least(4000)
        .node("/a", "0")
        .node("/b", "0")
        .node("/c", "0")
        .member(Member::slow().first(&[grant(LONG)]).does(&[
            write(attach("/a", "1")),
            write(attach("/b", "2")),
            write(attach("/c", "3")),
        ]))
        .member(Member::slow().does(&[write(revoke())]))
        .member(Member::slow().holds(&[data("/b")]).does(&[read("/b")])),
    ]
}

/// Connections that break, or lose messages.
fn connections() -> Vec<World> {
    let world = |name, about| World::new(name, about).node("/a", "0");
    vec![
        world("broken-write", "a connection breaks while a write is on its way, and the write is sent again")
            .least(14000)
            .member(Member::slow().holds(&[data("/a")]).does(&[put("/a", "1"), read("/a")]))
            .member(Member::slow().holds(&[data("/a")]).does(&[put("/a", "2")]))
            .faults(Faults { breaks: 1, ..NONE }),
        world(
            "broken-return",
            "a connection breaks while a client comes back after its lease has ended, and another writes",
        )
        .large()
        .least(180000)
        .member(Member::slow().does(&[put("/a", "1")]))
        .member(Member::slow().holds(&[data("/a")]).does(&[read("/")]))
        .moments(&[201])
        .faults(Faults { breaks: 1, ..NONE }),
        world("lost-recall", "a recall is lost, and later ones show it")
            .least(1000)
            .member(Member::slow().does(&[put("/a", "1")]))
            .member(Member::slow().holds(&[data("/a"), data("/")]).does(&[read("/a")]))
            .member(Member::slow().does(&[put("/", "2")]))
            .faults(Faults { lost_recalls: 1, ..NONE }),
        world("cut-holder", "the connection of a holder goes dead, and another writes")
            .least(70000)
            .member(Member::slow().does(&[put("/a", "1")]))
            .member(Member::slow().holds(&[data("/a")]).does(&[read("/a")]))
            .moments(&[199, 204])
            .faults(Faults { cuts: 1, ..NONE }),
    ]
}
