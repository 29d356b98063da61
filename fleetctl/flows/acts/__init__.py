"""The acts that states owe: each looks again, decides with decide/, and only then touches a node or the scheduler."""
