package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// cgroupPrefix is how the names of all clusters' groups start, so that those of dead ones can be found.
const cgroupPrefix = "claimkeeper-nodes-"

// hierarchies are the roots of all kinds of control groups: one for each kind, or the unified one.
func hierarchies() []string {
	marks, _ := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.procs"); err == nil {
		// What is below a unified root are its groups.
		marks = []string{"/sys/fs/cgroup/cgroup.procs"}
	}
	var roots []string
	for _, mark := range marks {
		roots = append(roots, filepath.Dir(mark))
	}
	return roots
}

// holdCgroup makes a group of this name that belongs to this process: as long as it lives nobody else sweeps it away. First
// it sweeps itself.
//
// A process holds a group by a lock on the group's directory, which the kernel takes from the dead. The root is locked
// meanwhile, because a group that was just made looks like one whose holder is gone.
func holdCgroup(name string) error {
	if !strings.HasPrefix(name, cgroupPrefix) {
		return fmt.Errorf("the name %s does not start with %s", name, cgroupPrefix)
	}
	roots := hierarchies()
	if len(roots) == 0 {
		return errors.New("no hierarchy of control groups is mounted in /sys/fs/cgroup")
	}
	root, err := lock(roots[0], unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	sweepCgroups()
	if err := makeCgroup(name); err != nil {
		return err
	}
	for _, root := range roots {
		// Never closed: the end of this process does that.
		if _, err := lock(filepath.Join(root, name), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			return err
		}
	}
	return nil
}

// lock returns a number instead of a file, which Go would close as soon as nothing refers to it.
func lock(directory string, how int) (int, error) {
	file, err := unix.Open(directory, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("cannot open %s: %w", directory, err)
	}
	for {
		err = unix.Flock(file, how)
		if err != unix.EINTR {
			break
		}
	}
	if err != nil {
		_ = unix.Close(file)
		return 0, fmt.Errorf("cannot lock %s: %w", directory, err)
	}
	return file, nil
}

// sweepCgroups removes the groups of keepers that were killed before they could. One that somebody holds or that a process is
// still in stays.
func sweepCgroups() {
	for _, root := range hierarchies() {
		groups, _ := filepath.Glob(filepath.Join(root, cgroupPrefix+"*"))
		for _, group := range groups {
			held, err := lock(group, unix.LOCK_EX|unix.LOCK_NB)
			if err != nil {
				continue
			}
			if tree := groupsIn(group); len(processesIn(tree)) == 0 {
				removeGroups(tree)
			}
			_ = unix.Close(held)
		}
	}
}

// makeCgroup makes a group of this name in every hierarchy, and those above it; the kubelet makes its own groups only below
// one that exists.
func makeCgroup(name string) error {
	for _, root := range hierarchies() {
		above := root
		for _, part := range strings.Split(name, "/") {
			group := filepath.Join(above, part)
			if err := os.Mkdir(group, 0o755); err != nil && !os.IsExist(err) {
				return err
			}
			// In the old kind these start out empty, and no process may enter a group without processors and memory.
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
				inherited, err := os.ReadFile(filepath.Join(above, file))
				if err != nil {
					continue
				}
				if err := os.WriteFile(filepath.Join(group, file), inherited, 0o644); err != nil {
					return err
				}
			}
			above = group
		}
	}
	return nil
}

// joinCgroup moves this process, and whatever it will start, into the group of this name.
func joinCgroup(name string) error {
	for _, root := range hierarchies() {
		processes := filepath.Join(root, name, "cgroup.procs")
		if err := os.WriteFile(processes, []byte(strconv.Itoa(os.Getpid())), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// killCgroup kills everything in the group of this name and below, and returns when it is dead.
func killCgroup(name string) error {
	var alive []int
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		var groups []string
		for _, root := range hierarchies() {
			groups = append(groups, groupsIn(filepath.Join(root, name))...)
		}
		if alive = processesIn(groups); len(alive) == 0 {
			return nil
		}
		for _, process := range alive {
			_ = syscall.Kill(process, syscall.SIGKILL)
		}
	}
	return fmt.Errorf("the processes %v in the control group %s did not die", alive, name)
}

// removeCgroup removes the group of this name in every hierarchy. It tries for a while, because the kernel needs a moment to
// empty the groups of dead processes.
func removeCgroup(name string) {
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		var groups []string
		for _, root := range hierarchies() {
			groups = append(groups, groupsIn(filepath.Join(root, name))...)
		}
		if len(groups) == 0 {
			return
		}
		removeGroups(groups)
	}
}

// groupsIn is a group and all below it, the deepest last.
func groupsIn(group string) []string {
	var groups []string
	_ = filepath.WalkDir(group, func(path string, entry os.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			groups = append(groups, path)
		}
		return nil
	})
	return groups
}

func removeGroups(groups []string) {
	for i := len(groups) - 1; i >= 0; i-- {
		_ = os.Remove(groups[i])
	}
}

func processesIn(groups []string) []int {
	var processes []int
	for _, group := range groups {
		listed, _ := os.ReadFile(filepath.Join(group, "cgroup.procs"))
		for _, line := range strings.Fields(string(listed)) {
			if process, err := strconv.Atoi(line); err == nil {
				processes = append(processes, process)
			}
		}
	}
	return processes
}
