package main

import (
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// lifelineVariable is set by a parent that holds the other end of our standard input for as long as it lives.
	lifelineVariable = "CLAIMKEEPER_LIFELINE"
	// runDirectoryVariable names the directory that belongs to the parent and is to go with it.
	runDirectoryVariable = "CLAIMKEEPER_LIFELINE_REMOVE"
)

// holdLifeline ends this process when its parent is gone.
func holdLifeline() {
	if os.Getenv(lifelineVariable) != "" {
		go func() {
			awaitEndOfParent()
			leaveNothing()
			os.Exit(1)
		}()
	}
}

// awaitEndOfParent returns when the parent is gone, however it went: the kernel closes its end of the pipe even after SIGKILL.
func awaitEndOfParent() {
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// leaveNothing tidies up after the parent. Every component does, because any of them may be the only one that was running.
func leaveNothing() {
	if directory := os.Getenv(runDirectoryVariable); directory != "" {
		wakeSiblings(directory)
		removeRunDirectory(directory)
	}
}

// wakeSiblings continues components that the parent had paused: a stopped process does not notice the end of its input.
func wakeSiblings(directory string) {
	files, _ := filepath.Glob(filepath.Join(directory, "pids", "*"))
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		if pid, err := strconv.Atoi(strings.TrimSpace(string(content))); err == nil {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	}
}

// removeRunDirectory tries for a while, because the other components may still be writing until they have seen the end too.
func removeRunDirectory(directory string) {
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if os.RemoveAll(directory) == nil {
			return
		}
	}
}
