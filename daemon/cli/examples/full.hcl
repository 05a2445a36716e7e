# An example of a job: tasks that shall run, and what they need.
# Check it with `steward job validate`, look at what it would do with `steward job plan`, and run it
# with `steward job run`.

# Values that differ from one run to the next. They are given with `-var greeting=hi`, in a file with
# `-var-file FILE`, or in the environment as STEWARD_VAR_greeting.
variable "greeting" {
  type        = string
  default     = "hello"
  description = "what the task says"

  validation {
    condition     = strlen(var.greeting) > 0
    error_message = "Say something."
  }
}

# Names for what is used more than once. They may be computed.
locals {
  script = "while :; do echo \"$GREETING from $NOMAD_ALLOC_NAME\"; sleep 1; done"
}

job "example" {
  # "service" runs until it is stopped, "batch" until it has done its work; "system" and "sysbatch"
  # do the same on every node.
  type = "service"

  # Jobs with a higher priority come first when there is not room for all: 1 to 100.
  priority = 50

  # Where it may run. Each `${...}` that is no variable of this file is filled in when a task is
  # placed or started.
  constraint {
    attribute = "${attr.kernel.name}"
    value     = "linux"
  }

  # How a new version of the job replaces the old one.
  update {
    max_parallel     = 1
    min_healthy_time = "5s"
    healthy_deadline = "1m"
    auto_revert      = true
  }

  # A group is what is always placed together. There may be several.
  group "hello" {
    # How often the group runs.
    count = 1

    # What happens when a task fails: it is started again where it is ...
    restart {
      attempts = 2
      interval = "10m"
      delay    = "5s"
      mode     = "fail"
    }

    # ... and if that does not help, the group is placed anew.
    reschedule {
      delay          = "30s"
      delay_function = "exponential"
      max_delay      = "10m"
      unlimited      = true
    }

    # A port that nothing else uses; the task learns its number as NOMAD_PORT_http.
    network {
      port "http" {}
    }

    # Files that live as long as the group does, in MB.
    ephemeral_disk {
      size = 50
    }

    # A task is one command.
    task "greeter" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", local.script]
      }

      env {
        GREETING = var.greeting
      }

      # What it needs: CPU in MHz, memory in MB.
      resources {
        cpu    = 100
        memory = 64
      }

      # How much of its output is kept, in files of so many MB.
      logs {
        max_files     = 2
        max_file_size = 5
      }

      # How long it may take to end after it was asked to.
      kill_timeout = "5s"
    }
  }
}
