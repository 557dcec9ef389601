#include "cli/command.h"

int main(int argc, char** argv) { return static_cast<int>(haversack::Main(argc, argv)); }
