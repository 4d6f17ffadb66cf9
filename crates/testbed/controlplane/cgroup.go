package main

import (
	"os"
	"path/filepath"
	"time"
)

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

// makeCgroup makes a group of this name in every hierarchy; the kubelet makes its own groups only below one that exists.
func makeCgroup(name string) error {
	for _, root := range hierarchies() {
		group := filepath.Join(root, name)
		if err := os.Mkdir(group, 0o755); err != nil {
			return err
		}
		// In the old kind these start out empty, and no process may enter a group without processors and memory.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			inherited, err := os.ReadFile(filepath.Join(root, file))
			if err != nil {
				continue
			}
			if err := os.WriteFile(filepath.Join(group, file), inherited, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// removeCgroup removes the group of this name in every hierarchy, deepest groups first. It tries for a while, because the
// kernel needs a moment to empty the groups of dead processes.
func removeCgroup(name string) {
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		var groups []string
		for _, root := range hierarchies() {
			_ = filepath.WalkDir(filepath.Join(root, name), func(path string, entry os.DirEntry, err error) error {
				if err == nil && entry.IsDir() {
					groups = append(groups, path)
				}
				return nil
			})
		}
		if len(groups) == 0 {
			return
		}
		for i := len(groups) - 1; i >= 0; i-- {
			_ = os.Remove(groups[i])
		}
	}
}
