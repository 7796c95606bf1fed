//! Two memory nodes, a card on each: a meter's workers and the memory of their rings are where their own cards are.

use packetrig_tests::program::Running;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::fs;

/// The first card of each memory node.
fn cards() -> BTreeMap<u32, String> {
    let mut cards = BTreeMap::new();
    for entry in fs::read_dir("/sys/class/net").unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let node = fs::read_to_string(format!("/sys/class/net/{name}/device/numa_node"));
        if let Some(node) = node.ok().and_then(|text| text.trim().parse().ok()) {
            cards.insert(node, name);
        }
    }
    cards
}

/// What a meter on these cards, one worker each, says of itself once it listens.
struct Placed {
    /// Processors that each worker may run on, as the kernel writes them.
    processors: Vec<String>,
    /// Pages of each worker's ring by memory node, in the order the rings were opened.
    rings: Vec<BTreeMap<u32, u64>>,
}

fn placed(cards: &[&str]) -> Placed {
    let mut arguments = vec!["meter"];
    arguments.extend(cards);
    arguments.extend(["--ring", "4MiB", "--flows", "1024", "-p"]);
    let mut running = Running::start(&arguments, "");
    running.await_remark("listening");
    let process = running.process();
    let maps = fs::read_to_string(format!("/proc/{process}/numa_maps")).unwrap();
    let placed = Placed { processors: worker_processors(process), rings: ring_pages(&maps) };
    running.signal(Signal::INT);
    let finished = running.finish();
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    placed
}

/// Of the threads `meter-0`, `meter-1` and so on.
fn worker_processors(process: u32) -> Vec<String> {
    let mut processors = BTreeMap::new();
    for task in fs::read_dir(format!("/proc/{process}/task")).unwrap() {
        let task = task.unwrap().path();
        // Threads that only prepare something end meanwhile; a worker that did is missed by the caller.
        let [Ok(name), Ok(status)] = ["comm", "status"].map(|file| fs::read_to_string(task.join(file)))
        else {
            continue;
        };
        let name = name.trim().to_owned();
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
        if name.strip_prefix("meter-").is_some_and(|rest| rest.parse::<u32>().is_ok()) {
            processors.insert(name, allowed.trim().to_owned());
        }
    }
    processors.into_values().collect()
}

/// The kernel lists mappings by address, and gives later ones lower addresses.
fn ring_pages(maps: &str) -> Vec<BTreeMap<u32, u64>> {
    let of = |line: &str| {
        let counts = line.split(' ').filter_map(|word| word.strip_prefix('N')?.split_once('='));
        counts.filter_map(|(node, pages)| Some((node.parse().ok()?, pages.parse().ok()?))).collect()
    };
    maps.lines().rev().filter(|line| line.contains("socket:")).map(of).collect()
}

#[test]
#[ignore = "runs in the guest: make test-vm"]
fn workers_and_rings_follow_numa_node_of_card() {
    let cards = cards();
    let [near, far] =
        [0, 1].map(|node| cards.get(&node).unwrap_or_else(|| panic!("none on {node}: {cards:?}")));
    let on_node =
        |node: u32| fs::read_to_string(format!("/sys/devices/system/node/node{node}/cpulist")).unwrap();
    for (order, nodes) in [([near, far], [0, 1]), ([far, near], [1, 0])] {
        let placed = placed(&order.map(String::as_str));
        let wanted = nodes.map(|node| on_node(node).trim().to_owned());
        assert_eq!(placed.processors, wanted, "{order:?}");
        for (pages, node) in placed.rings.iter().zip(nodes) {
            let all: u64 = pages.values().sum();
            assert!(all > 0 && pages.get(&node) == Some(&all), "{order:?}, a ring of node {node}: {pages:?}");
        }
        assert_eq!(placed.rings.len(), 2, "{order:?}");
    }
}

#[test]
#[ignore = "runs in the guest: make test-vm"]
fn worker_of_far_card_runs_on_far_node() {
    let cards = cards();
    let placed = placed(&[cards[&1].as_str()]);
    assert_eq!(placed.processors, ["1"]);
}
